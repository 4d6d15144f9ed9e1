"""Layer ranges: even cuts, reading, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink.errors import ConfigError, PlacementError
from stagelink.placement.ranges import check_ranges, even_ranges, format_ranges, parse_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("layers", "world", "expected"),
    [
        (30, 3, "0-10,10-20,20-30"),
        (32, 3, "0-10,10-21,21-32"),
        (30, 1, "0-30"),
        (3, 3, "0-1,1-2,2-3"),
        (7, 5, "0-1,1-2,2-3,3-5,5-7"),
    ],
)
def test_an_even_cut_gives_what_is_left_over_to_the_last_ranks(
    layers: int, world: int, expected: str
) -> None:
    assert format_ranges(even_ranges(layers, world)) == expected


@given(layers=st.integers(1, 400), world=st.integers(1, 64))
def test_an_even_cut_covers_every_layer_once(layers: int, world: int) -> None:
    if world > layers:
        with pytest.raises(PlacementError):
            even_ranges(layers, world)
        return
    ranges = even_ranges(layers, world)
    sizes = [end - first for first, end in ranges]
    assert check_ranges(ranges, layers) == ranges
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("world", "allowed", "expected"),
    [
        (2, range(1, 14), "0-13,13-35"),
        (3, range(1, 19), "0-11,11-18,18-35"),
        (4, range(1, 4), "0-1,1-2,2-3,3-35"),
        (2, (10, 24), "0-10,10-35"),
        (3, (20, 24), "0-20,20-24,24-35"),
        (1, (), "0-35"),
    ],
)
def test_a_model_that_cannot_be_cut_everywhere_is_cut_as_near_as_it_allows(
    world: int, allowed: Sequence[int], expected: str
) -> None:
    assert format_ranges(even_ranges(35, world, allowed)) == expected


def test_more_stages_than_allowed_cuts_names_them() -> None:
    with pytest.raises(PlacementError, match=r"before layers 2, 4: use --stages 3") as caught:
        even_ranges(30, 4, (2, 4))
    assert caught.value.reason == "too_many_stages"


def test_more_stages_than_one_of_a_model_without_cuts_says_so() -> None:
    with pytest.raises(PlacementError, match=r"cannot be cut: use --stages 1$") as caught:
        even_ranges(30, 2, ())
    assert caught.value.reason == "too_many_stages"


@given(layers=st.integers(1, 100), world=st.integers(1, 64))
def test_a_model_that_can_be_cut_everywhere_is_cut_evenly(layers: int, world: int) -> None:
    if world <= layers:
        every = range(1, layers)
        assert even_ranges(layers, world, every) == even_ranges(layers, world)


def test_more_stages_than_layers_names_both_numbers() -> None:
    with pytest.raises(PlacementError, match=r"31 stages .* 30 layers") as caught:
        even_ranges(30, 31)
    assert caught.value.reason == "too_many_stages"


@pytest.mark.parametrize("world", [0, -1, 65])
def test_a_world_out_of_its_range_is_refused(world: int) -> None:
    with pytest.raises(PlacementError) as caught:
        even_ranges(100, world)
    assert caught.value.reason == "world"


def test_both_spellings_of_a_range_are_read() -> None:
    assert parse_ranges("0-10, 10..20") == ((0, 10), (10, 20))


@pytest.mark.parametrize("text", ["", "0-", "0-10,", "a-b", "0:10", "0-10;10-20", "-1-3", "1"])
def test_another_spelling_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ranges(text)
    assert caught.value.reason == "layers_text"


@pytest.mark.parametrize(
    ("text", "reason", "rank"),
    [
        ("1-10,10-30", "range_gap", 0),
        ("0-10,11-30", "range_gap", 1),
        ("0-10,10-29", "range_gap", 1),
        ("0-10,9-30", "range_overlap", 1),
        ("0-10,10-31", "range_overrun", 1),
        ("0-31", "range_overrun", 0),
        ("0-10,10-10,10-30", "range_empty", 1),
        ("0-10,20-10,10-30", "range_empty", 1),
    ],
)
def test_ranges_that_do_not_cover_the_layers_once_name_the_rule_and_the_rank(
    text: str, reason: str, rank: int
) -> None:
    with pytest.raises(PlacementError, match=f"rank {rank} ") as caught:
        check_ranges(parse_ranges(text), 30)
    assert (caught.value.reason, caught.value.rank) == (reason, rank)


def test_no_ranges_at_all_are_refused() -> None:
    with pytest.raises(PlacementError) as caught:
        check_ranges((), 30)
    assert caught.value.reason == "world"


@pytest.mark.parametrize("text", ["\N{FULLWIDTH DIGIT ONE}-2", "0-9999999", "9" * 500])
def test_ranges_are_short_ascii_numbers_and_the_refusal_is_short(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ranges(text)
    assert caught.value.reason == "layers_text"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("allowed", "most"), [(None, "6 or less"), ((1, 2), "3 or less"), ((), "1")]
)
def test_more_stages_than_layers_are_told_how_many_the_model_allows(
    allowed: tuple[int, ...] | None, most: str
) -> None:
    with pytest.raises(PlacementError, match=f"use --stages {most}$") as caught:
        even_ranges(6, 7, allowed)
    assert caught.value.reason == "too_many_stages"
