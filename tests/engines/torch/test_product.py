"""A matrix that works in blocks gives the bits of one that does not, and of torch's own product.

It times nothing.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import numpy as np
import torch
from torch.nn import functional

from stagelink_torch.layer import Setup
from stagelink_torch.mlp import MANY_ROWS, GatedMlp
from stagelink_torch.product import BLOCK_BYTES, WIDE_BYTES, Matrix, ReadAhead
from stagelink_torch.weights import ALIGNMENT, LentMemory

SHAPES = [(960, 576), (3072, 576), (576, 1536), (4111, 130), (49, 4096), (500, 257)]


def _setup(dtype: torch.dtype = torch.float32) -> Setup:
    return Setup(torch.device("cpu"), dtype, dtype, 64, 2, 64)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_reading_ahead_changes_no_bit(shape: tuple[int, int], biased: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    setup = _setup()
    weight = torch.randn(*shape, generator=generator)
    bias = torch.randn(shape[0], generator=generator) if biased else None
    matrix = Matrix(weight, setup, bias)
    ReadAhead.of(setup).on = True
    assert weight.nbytes <= BLOCK_BYTES or len(matrix._blocks) > 1
    for count in (1, 2, 3, 8):
        rows = torch.randn(count, shape[1], generator=generator)
        assert torch.equal(matrix(rows), functional.linear(rows, weight, bias))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("rows", "shape"), [(96, (49152, 64)), (129, (33001, 130)), (2, (2**21, 8))]
)
def test_many_rows_of_a_very_wide_matrix_have_torchs_bits(
    rows: int, shape: tuple[int, int], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(*shape, generator=generator)
    bias = torch.randn(shape[0], generator=generator) if biased else None
    matrix = Matrix(weight, _setup(), bias)
    given = torch.randn(rows, shape[1], generator=generator)
    expected = functional.linear(given, weight, bias)
    assert expected.nbytes >= WIDE_BYTES
    products = _count_products(monkeypatch)
    assert torch.equal(matrix(given), expected)
    assert len(products) > 1
    products.clear()
    few = given[:1]
    assert torch.equal(matrix(few), functional.linear(few, weight, bias))


def test_a_wide_result_that_somebody_holds_keeps_its_values() -> None:
    matrix = Matrix(torch.ones(1 << 16, 2), _setup())
    first = matrix(torch.ones(64, 2)).numpy()[3:5]
    second = matrix(torch.full((64, 2), 2.0)).numpy()
    assert (first == 2.0).all()
    assert (second == 4.0).all()


def test_long_memory_is_lent_again_once_nothing_of_it_is_held() -> None:
    memory = LentMemory()
    held = memory.take(1 << 20).view(torch.float32).view(512, -1).numpy()[1:]
    other = memory.take(1 << 20)
    assert not np.shares_memory(held, other.numpy())
    where = held.__array_interface__["data"][0] - (1 << 11)
    del held
    again = memory.take(1 << 19)
    assert again.data_ptr() == where
    assert again.data_ptr() % ALIGNMENT == 0
    assert len(again) == 1 << 19
    del again
    assert len(memory.take(1 << 22)) == 1 << 22


def test_a_product_that_is_not_very_wide_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = Matrix(torch.ones(3072, 16), _setup())
    products = _count_products(monkeypatch)
    matrix(torch.ones(256, 16))
    assert len(products) == 1


def _count_products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every product of many rows say its columns."""
    made: list[int] = []

    def linear(
        rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        made.append(len(weight))
        return torch.nn.functional.linear(rows, weight, bias)

    monkeypatch.setattr("stagelink_torch.product.functional", SimpleNamespace(linear=linear))
    return made


class _Read:
    """Hands out three matrices by their names."""

    def __init__(self, width: int, inner: int) -> None:
        generator = torch.Generator().manual_seed(7)
        shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
        self.held = {
            f"mlp.{name}_proj.weight": torch.randn(*shape, generator=generator)
            for name, shape in shapes.items()
        }

    def read(self, *names: str) -> torch.Tensor:
        return torch.cat([self.held[name] for name in names])


@pytest.mark.parametrize("count", [1, 2, MANY_ROWS - 1, MANY_ROWS, 100])
def test_gate_and_up_have_their_own_bits_for_few_rows_and_for_many(count: int) -> None:
    read = _Read(96, 160)
    block = GatedMlp(read, "mlp.", _setup())  # type: ignore[arg-type]
    rows = torch.randn(count, 96, generator=torch.Generator().manual_seed(8))
    gate, up, down = read.held.values()
    inner = functional.silu(functional.linear(rows, gate)) * functional.linear(rows, up)
    assert torch.equal(block(rows), functional.linear(inner, down))


def test_every_matrix_of_a_stage_has_one_switch() -> None:
    setup = _setup()
    Matrix(torch.zeros(64, 64), setup)
    assert ReadAhead.of(setup) is ReadAhead.of(setup)
    assert ReadAhead.of(setup) is not ReadAhead.of(_setup())


def _choose(results: dict[bool, float]) -> tuple[bool, list[bool]]:
    """Let a switch choose between little work ahead and much work without."""
    ahead = ReadAhead()
    seen: list[bool] = []

    def step() -> torch.Tensor:
        seen.append(ahead.on)
        # Work instead of time: the way that does less of it must win whatever the machine does.
        for _ in range(1 if ahead.on else 40):
            torch.ones(1 << 16).sum()
        return torch.tensor(results[ahead.on])

    ahead.choose(step)
    return ahead.on, seen


def test_the_faster_way_is_chosen() -> None:
    on, seen = _choose({False: 1.0, True: 1.0})
    assert on
    assert sorted(set(seen)) == [False, True]


def test_a_faster_way_with_other_bits_is_not_chosen() -> None:
    on, _ = _choose({False: 1.0, True: 1.0000001})
    assert not on


def test_a_matrix_of_another_dtype_does_not_read_ahead() -> None:
    setup = _setup(torch.bfloat16)
    matrix = Matrix(torch.ones(2048, 576, dtype=torch.bfloat16), setup)
    ReadAhead.of(setup).on = True
    assert matrix._blocks == ()
