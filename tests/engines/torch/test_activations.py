"""Activations: a value's bits are its own in one form, and close to torch's in both.

What a whole model makes of them in batch-invariant mode is in test_invariance.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch

from stagelink.engine import ConfigError
from stagelink_torch.activations import activation_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("silu", "gelu", "gelu_pytorch_tanh", "sigmoid")
# Three threads divide so many values in the middle of a row.
ROWS, WIDTH = 128, 4864


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("width", [37, WIDTH])
@pytest.mark.parametrize("name", NAMES)
def test_a_value_alone_has_its_bits_beside_any_number_of_rows(name: str, width: int) -> None:
    activate = activation_of(name, alone=True)
    both = torch.randn(ROWS, 2 * width, generator=torch.Generator().manual_seed(4)) * 3
    # Half of a wider row, as gates are, and rows that lie one after the other.
    for rows in (both[:, :width], both[:, :width].contiguous()):
        whole = activate(rows)
        for count in (1, 4, 20, 28, 100):
            assert torch.equal(activate(rows[:count].clone()), whole[:count])
            assert torch.equal(activate(rows[count:].clone()), whole[count:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_both_forms_are_one_function(name: str, dtype: torch.dtype) -> None:
    rows = torch.linspace(-120, 120, 4001).to(dtype)
    own, alone = (activation_of(name, alone=one)(rows) for one in (False, True))
    assert alone.dtype == dtype
    near = 1e-6 if dtype == torch.float32 else 1e-2
    assert torch.allclose(own.float(), alone.float(), rtol=near, atol=near)


def test_a_name_without_a_formula_is_refused_by_its_code() -> None:
    with pytest.raises(ConfigError, match="relu6") as caught:
        activation_of("relu6")
    assert caught.value.reason == "activation"
