"""A plan's batches and pieces: the composition rule of docs/exactness.md."""

from __future__ import annotations

import pytest

from stagelink.engine import (
    CLOSE,
    CONTINUE,
    OPEN,
    Batch,
    EngineChecks,
    EngineError,
    EngineSettings,
    Piece,
    Round,
)
from stagelink_conformance.plans import Entry, RoundPlan

SETTINGS = EngineSettings(context=64, streams_max=4, rows_max=32)
OPEN_STREAMS = {1: 10, 2: 20}


def _checked(plan: RoundPlan) -> Round:
    return EngineChecks("some").plan(plan, OPEN_STREAMS, 2, SETTINGS)


def test_without_cuts_a_round_is_one_batch() -> None:
    plan = RoundPlan.of(Entry(1, CONTINUE, 10, 2), Entry(2, CONTINUE, 18, 3), Entry(3, OPEN, 0, 4))
    checked = _checked(plan)
    pieces = (Piece(1, 10, 0, 2), Piece(2, 18, 2, 5), Piece(3, 0, 5, 9))
    assert checked.batches == (Batch(0, 9, pieces),)


def test_a_cut_inside_a_stream_continues_it_in_the_next_batch() -> None:
    plan = RoundPlan.of(Entry(1, CONTINUE, 10, 2), Entry(2, CONTINUE, 20, 6), cuts=[1, 5])
    checked = _checked(plan)
    assert checked.batches == (
        Batch(0, 1, (Piece(1, 10, 0, 1),)),
        Batch(1, 5, (Piece(1, 11, 0, 1), Piece(2, 20, 1, 4))),
        Batch(5, 8, (Piece(2, 23, 0, 3),)),
    )


def test_an_entry_without_rows_is_in_no_batch() -> None:
    plan = RoundPlan.of(Entry(1, CLOSE), Entry(2, CONTINUE, 20, 1))
    checked = _checked(plan)
    assert checked.batches == (Batch(0, 1, (Piece(2, 20, 0, 1),)),)
    assert len(checked.entries) == 2


def test_a_round_without_rows_has_no_batch() -> None:
    assert _checked(RoundPlan.of(Entry(1, CLOSE))).batches == ()
    assert _checked(RoundPlan.of()).rows == 0


def test_a_cut_in_a_round_without_rows_is_refused() -> None:
    with pytest.raises(EngineError) as caught:
        _checked(RoundPlan.of(Entry(1, CLOSE), cuts=[1]))
    assert caught.value.reason == "cut_outside"


def test_a_plan_whose_total_is_not_its_sum_is_refused() -> None:
    class Lying(RoundPlan):
        rows_total = 7

    plan = RoundPlan.of(Entry(1, CONTINUE, 10, 2))
    columns = {name: getattr(plan, name) for name in RoundPlan.__slots__}
    with pytest.raises(EngineError) as caught:
        _checked(Lying(**columns))
    assert caught.value.reason == "rows_count"


def test_columns_of_unlike_lengths_are_refused() -> None:
    plan = RoundPlan.of(Entry(1, CONTINUE, 10, 2))
    columns = {name: getattr(plan, name) for name in RoundPlan.__slots__}
    with pytest.raises(EngineError) as caught:
        _checked(RoundPlan(**{**columns, "ops": ()}))
    assert caught.value.reason == "rows_count"
