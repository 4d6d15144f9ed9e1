"""What a run of chunks would take without a wire."""

from __future__ import annotations

import pytest

import bulk
from bulk_ends import IN_FLIGHT, Run


def run(own: list[float], other: list[float]) -> float:
    return float(bulk.without_wire(Run(0.0, own, [], other)))


def test_two_equal_ends_take_one_chunk_more_than_one_end() -> None:
    assert run([2.0] * 16, [2.0] * 16) == pytest.approx(34)


def test_the_slower_end_decides_and_the_faster_one_adds_its_first_or_last_chunk() -> None:
    assert run([1.0] * 16, [3.0] * 16) == pytest.approx(1 + 48)
    assert run([3.0] * 16, [1.0] * 16) == pytest.approx(48 + 1)


def test_rank_0_waits_for_a_return_where_as_many_as_may_be_are_in_flight() -> None:
    # The other end is stuck in its first chunk, then both are quick.
    others = [10.0] + [1.0] * 7
    assert run([1.0] * 8, others) == pytest.approx(11 + 7)
    late = [1.0] * IN_FLIGHT + [5.0] * 4
    assert run(late, others) == pytest.approx(11 + 4 * 5 + 1)
