"""A matrix that reads ahead gives the bits of one that does not, and of torch's own product.

It times nothing.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from torch.nn import functional

from stagelink_torch.layer import Setup
from stagelink_torch.product import BLOCK_BYTES, Matrix, ReadAhead

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
