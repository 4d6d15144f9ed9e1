"""Which links are measured, and that plans and digests stand for a probe and nothing else."""

from __future__ import annotations

import pytest

from stagelink.probe import terms
from stagelink.probe.terms import Link, Plans, launch_id_of, links_of, nearest_rank


def test_a_ring_of_two_has_one_pair_and_a_larger_ring_has_a_link_a_rank() -> None:
    assert links_of(2) == [Link(0, 1)]
    assert links_of(3) == [Link(0, 1), Link(1, 2), Link(2, 0)]


def test_every_rank_of_the_largest_ring_starts_and_ends_one_link() -> None:
    links = links_of(64)
    assert sorted(link.start for link in links) == sorted(link.end for link in links)
    assert len(links) == 64


def test_each_link_has_a_launch_id_of_its_own() -> None:
    launch_id = bytes(range(16))
    made = {launch_id_of(launch_id, link) for link in links_of(64)}
    assert len(made) == 64
    assert {len(one) for one in made} == {16}


def test_the_two_kinds_of_ring_share_no_digest() -> None:
    digests = [*terms.WHOLE_FIELDS, *terms.LINK_FIELDS]
    assert len(set(digests)) == 16
    assert {len(digest) for digest in digests} == {32}


def test_a_stream_is_opened_once_and_then_grows() -> None:
    plans = Plans()
    first, second, third = (plans.next(terms.ROUND_TRIP, rows) for rows in (1, 5, 2))
    assert (first.ops, second.ops, third.ops) == ((1,), (2,), (2,))
    assert (first.firsts, second.firsts, third.firsts) == ((0,), (1,), (6,))
    assert (second.accepted, third.accepted) == ((1,), (5,))


@pytest.mark.parametrize(
    ("stream", "back"),
    [(terms.ROUND_TRIP, 4), (terms.FORWARD, 0), (terms.BACK, 4), (terms.BOTH, 4)],
)
def test_rows_come_back_in_every_stream_but_forward(stream: int, back: int) -> None:
    assert Plans().next(stream, 4).rows_returned == back


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)]
)
def test_a_percentile_is_a_value_that_was_measured(share: float, value: float) -> None:
    assert nearest_rank([float(number) for number in range(100, 0, -1)], share) == value


def test_the_percentile_of_one_value_is_that_value() -> None:
    assert nearest_rank([7.0], 0.99) == 7.0


def test_a_burst_fits_the_largest_round() -> None:
    assert terms.BURST_ROWS_MAX * terms.ROW_BYTES == 8 << 20
    terms.link_description(1)
    terms.whole_description(63, 64)
