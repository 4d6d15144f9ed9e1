"""A reference in pieces keeps to the cuts that its engine allows."""

from __future__ import annotations

import pytest

from stagelink.node.reference import pieces


@pytest.mark.parametrize(
    ("layers", "cuts", "expected"),
    [
        (None, (4,), [(0, 8)]),
        (3, range(1, 8), [(0, 3), (3, 6), (6, 8)]),
        (1, (4,), [(0, 4), (4, 8)]),
        (3, (2, 4, 6), [(0, 2), (2, 4), (4, 6), (6, 8)]),
        (6, (4,), [(0, 4), (4, 8)]),
        (1, (), [(0, 8)]),
    ],
)
def test_pieces_end_where_a_cut_is_allowed(
    layers: int | None, cuts: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    assert pieces(0, 8, layers, cuts) == expected


def test_pieces_of_a_later_range_use_only_cuts_inside_it() -> None:
    assert pieces(4, 12, 2, (4, 8, 12)) == [(4, 8), (8, 12)]
