"""Short sums: what replaces a module computes the same, and keeps digits that a long sum loses.

How fast they are is not tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

import mlx.core as mx
from mlx import nn

from stagelink_mlx.library import models_module
from stagelink_mlx.parts import sums

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

ROWS, WIDTH, OUTPUTS, EXPERTS = 24, 1536, 96, 5
# An early value of a real model's residual stream may be this many times the others.
MASSIVE = 3000.0


class One(nn.Module):
    """A module inside another, as in a layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    with mx.stream(mx.Device(mx.cpu)):
        yield


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def massive_rows(*shape: int) -> Floats:
    rows = drawn(1, *shape)
    rows[..., 5] *= MASSIVE
    return rows


def shortened(module: nn.Module, *, tied: bool = False) -> Any:
    outer = One(module)
    sums.use_short_sums(outer, tied=tied)
    assert outer.inner is not module
    return outer.inner


def error(got: mx.array, expected: npt.NDArray[np.float64]) -> float:
    assert got.shape == expected.shape
    return float(np.abs(np.array(got).astype(np.float64) - expected).mean())


def test_a_product_loses_few_of_the_digits_behind_a_massive_value() -> None:
    rows, weight = massive_rows(ROWS, WIDTH), drawn(2, OUTPUTS, WIDTH)
    linear = nn.Linear(WIDTH, OUTPUTS, bias=False)
    linear.weight = mx.array(weight)
    expected = rows.astype(np.float64) @ weight.T.astype(np.float64)
    # What the plain sum, one term after the other, comes to.
    long = np.zeros_like(expected, np.float32)
    for term in range(WIDTH):
        long += rows[:, term : term + 1] * weight[:, term]
    lost = error(mx.array(long), expected)
    assert error(shortened(linear)(mx.array(rows)), expected) <= lost / 3


def test_a_bias_is_added() -> None:
    linear = nn.Linear(WIDTH, OUTPUTS)
    linear.weight, linear.bias = mx.array(drawn(2, OUTPUTS, WIDTH)), mx.array(drawn(3, OUTPUTS))
    weight, bias = np.array(linear.weight).astype(np.float64), np.array(linear.bias)
    rows = drawn(1, 1, ROWS, WIDTH)
    assert error(shortened(linear)(mx.array(rows)), rows @ weight.T + bias) <= 1e-5


def test_many_rows_have_the_bits_that_they_have_with_all_blocks_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linear = nn.Linear(WIDTH, OUTPUTS)
    short, rows = shortened(linear), mx.array(massive_rows(ROWS, WIDTH))
    at_once = np.array(short(rows))
    monkeypatch.setattr(sums, "_VALUES_AT_ONCE", 1)
    assert np.array_equal(np.array(short(rows)), at_once)


def test_a_tied_table_gives_its_rows_unchanged_and_the_logits() -> None:
    embedding = nn.Embedding(OUTPUTS, WIDTH)
    table = np.array(embedding.weight)
    short = shortened(embedding, tied=True)
    ids = np.array([[7, 0, 95], [1, 7, 2]])
    assert np.array_equal(np.array(short(mx.array(ids))), table[ids])
    rows = drawn(1, ROWS, WIDTH)
    assert error(short.as_linear(mx.array(rows)), rows @ table.T.astype(np.float64)) <= 1e-5


def test_a_table_that_is_only_read_stays_as_it_is() -> None:
    outer = One(nn.Embedding(OUTPUTS, WIDTH))
    before = outer.inner
    sums.use_short_sums(outer)
    assert outer.inner is before
    assert before.weight.shape == (OUTPUTS, WIDTH)


@pytest.mark.parametrize("rows", [3, 64], ids=["as_they_come", "sorted_by_expert"])
def test_experts_answer_for_the_rows_that_chose_them(rows: int) -> None:
    switch = models_module("switch_layers").SwitchGLU(WIDTH, 128, EXPERTS, bias=True)
    for seed, part in enumerate((switch.gate_proj, switch.up_proj, switch.down_proj), 10):
        part.bias = mx.array(drawn(seed, *part.bias.shape))
    given = mx.array(drawn(1, 1, rows, WIDTH))
    chosen = mx.array(np.random.default_rng(4).integers(0, EXPERTS, (1, rows, 2)))
    expected = np.array(switch(given, chosen)).astype(np.float64)
    sums.use_short_sums(switch)
    assert "blocks" in switch.down_proj
    assert error(switch(given, chosen), expected) <= 1e-5


@pytest.mark.parametrize("transpose", [True, False], ids=["turned", "as_it_lies"])
def test_heads_multiply_from_either_side(transpose: bool) -> None:
    heads, inputs, outputs = 3, 128, 512
    multi = models_module("mla").MultiLinear(inputs, outputs, heads)
    weight = np.array(multi.weight).astype(np.float64)
    rows = drawn(1, 1, 1, ROWS, inputs if transpose else outputs)
    expected = rows @ (weight.swapaxes(-1, -2) if transpose else weight)
    assert error(shortened(multi)(mx.array(rows), transpose=transpose), expected) <= 1e-5


@pytest.mark.parametrize("family", ["plain", "gemma", "gemma2", "gemma3_text"])
def test_a_norm_keeps_its_digits_beside_a_massive_value(family: str) -> None:
    plain = family == "plain"
    kind = nn.RMSNorm if plain else models_module(family).RMSNorm
    norm, rows, weight = kind(WIDTH, 1e-5), massive_rows(ROWS, WIDTH), drawn(2, WIDTH)
    norm.weight = mx.array(weight)
    wide = rows.astype(np.float64)
    scale = weight.astype(np.float64) if plain else 1.0 + weight.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + 1e-5) * scale
    got = np.array(shortened(norm)(mx.array(rows))).astype(np.float64)
    # The sums, the root, the quotient and the product are rounded; one long sum comes to 6e-6.
    assert np.abs(got / expected - 1.0).max() <= 6e-7


@pytest.mark.parametrize("width", [61, 8, 1000, 4864])
def test_any_width_can_be_summed(width: int) -> None:
    linear = nn.Linear(width, OUTPUTS, bias=False)
    weight, rows = np.array(linear.weight).astype(np.float64), drawn(1, ROWS, width)
    assert error(shortened(linear)(mx.array(rows)), rows @ weight.T) <= 1e-5
