"""How far a recurrent state goes back: said by counting pieces, and true of the states kept.

It computes nothing: a state here is the number of rows that went into it.
"""

from __future__ import annotations

import random

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

import mlx.core as mx

from stagelink_mlx.cache import SPAN_ROWS, Reach, Recurrent


class Counted:
    """A stream of one recurrent layer whose state counts its rows, and what is said of it."""

    def __init__(self) -> None:
        self.cache, self.reach, self.position = Recurrent(), Reach(), 0

    def run(self, rows: int) -> None:
        self.reach.begin(self.position)
        self.cache.begin(mx.zeros((1, rows, 1)))
        self._layer(rows)
        self.position += rows

    def cut(self, position: int) -> None:
        if position != self.position:
            self.cache.cut(position, lambda kept: self._layer(kept.shape[1]))
            self.reach.cut(position)
            self.position = position

    def _layer(self, rows: int) -> None:
        before = self.cache[1]
        count = mx.array(rows) if before is None else before + rows
        self.cache[0] = self.cache[1] = count
        self.cache.advance(rows)

    def counted(self) -> int:
        return 0 if self.cache[1] is None else int(self.cache[1].item())


@pytest.mark.parametrize("seed", range(8))
def test_every_allowed_cut_has_the_state_of_its_position(seed: int) -> None:
    draw, stream = random.Random(seed), Counted()
    for _ in range(200):
        stream.run(draw.choice([1, 1, 1, 2, 8, 40, 100]))
        if draw.random() < 0.4:
            low = stream.reach.earliest
            stream.cut(draw.choice([draw.randint(low, stream.position), stream.position - 1, low]))
        assert stream.counted() == stream.position
        assert stream.reach.earliest == stream.cache._points[0].position


def test_a_cut_reaches_back_over_a_span_at_least() -> None:
    draw, stream = random.Random(1), Counted()
    for _ in range(200):
        stream.run(draw.randint(1, 50))
        assert stream.reach.earliest <= max(0, stream.position - SPAN_ROWS)


def test_what_is_kept_of_the_rows_does_not_grow() -> None:
    stream = Counted()
    for _ in range(500):
        stream.run(1)
    assert len(stream.cache._pieces) <= 2 * SPAN_ROWS
