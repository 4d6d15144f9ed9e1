"""Promises about errors: a call that an engine refuses changes nothing at all.

Each test lets a stage refuse, and then goes on as if the call had never been made.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, RESUME, Preparing
from stagelink_conformance.bystanders import (
    HELD,
    assert_plan_refused,
    assert_refused,
    assert_unchanged,
    busy,
)
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan, told
from stagelink_conformance.scripts import chunked

if TYPE_CHECKING:
    from stagelink_conformance.stages import Stages

# Plans that break one rule each, for a stage where streams 1 to 3 of 4 are open at position 10; the
# reasons are the codes of docs/protocol.md 9. Every plan also cuts, ends or opens something valid.
_GOOD = Entry(1, CONTINUE, HELD - 3, 2)
BAD_PLANS = {
    "continue_unknown": (RoundPlan.of(_GOOD, Entry(9, CONTINUE, 0, 1)), "unknown_stream"),
    "close_unknown": (RoundPlan.of(_GOOD, Entry(9, CLOSE)), "unknown_stream"),
    "cancel_unknown": (RoundPlan.of(_GOOD, Entry(9, CANCEL)), "unknown_stream"),
    "open_again": (RoundPlan.of(_GOOD, Entry(2, OPEN, 0, 1)), "stream_reused"),
    "open_later": (RoundPlan.of(_GOOD, Entry(9, OPEN, 1, 1)), "open_first"),
    "position_ahead": (RoundPlan.of(_GOOD, Entry(2, CONTINUE, HELD + 1, 1)), "wrong_position"),
    "no_rows": (RoundPlan.of(_GOOD, Entry(2, CONTINUE, HELD, 0)), "rows_missing"),
    "close_with_rows": (RoundPlan.of(_GOOD, Entry(2, CLOSE, 0, 1)), "rows_with_close"),
    "bad_op": (RoundPlan.of(_GOOD, Entry(2, 77, HELD, 1)), "unsupported_op"),
    "order": (RoundPlan.of(Entry(2, CONTINUE, HELD, 1), _GOOD), "streams_order"),
    "twice": (RoundPlan.of(_GOOD, _GOOD), "streams_order"),
    "cut_at_end": (RoundPlan.of(_GOOD, Entry(2, CLOSE), cuts=[2]), "cut_outside"),
    "cut_at_zero": (RoundPlan.of(_GOOD, Entry(2, CLOSE), cuts=[0]), "cut_outside"),
    "cut_twice": (RoundPlan.of(Entry(1, CONTINUE, HELD, 4), cuts=[2, 2]), "cut_order"),
}


class _LyingPlan(RoundPlan):
    """A plan whose rows are not the sum of its entries'."""

    @property
    def rows_total(self) -> int:
        """One row fewer than there are."""
        return sum(self.rows) - 1


# What no reader of a wire lets through, one after the other: an engine may be called without one.
_PLAN = RoundPlan.of(_GOOD, Entry(2, CONTINUE, HELD, 1))
WILD_PLANS = (
    (RoundPlan.of(_GOOD, Entry(9, RESUME, 4, 1)), "unsupported_op"),
    (RoundPlan.of(_GOOD, Entry(2, 0, HELD, 1)), "unsupported_op"),
    (RoundPlan.of(_GOOD, Entry(9, OPEN, 0, 0)), "rows_missing"),
    (RoundPlan.of(_GOOD, Entry(2, CONTINUE, HELD, -1)), "rows_missing"),
    (RoundPlan.of(_GOOD, Entry(2, CONTINUE, HELD, 1 << 31)), "context_overrun"),
    (RoundPlan.of(_GOOD, Entry(9, OPEN, 0, 1 << 62)), "context_overrun"),
    (RoundPlan.of(_GOOD, Entry(2, CONTINUE, -1, 1)), "wrong_position"),
    (RoundPlan.of(_GOOD, Entry(2, CONTINUE, 1 << 62, 1)), "wrong_position"),
    (RoundPlan.of(_GOOD, Entry(2, CANCEL, 0, 1)), "rows_with_close"),
    (RoundPlan.of(_GOOD, Entry(2, CLOSE), Entry(2, OPEN, 0, 1)), "streams_order"),
    (RoundPlan.of(_GOOD, Entry(2, CANCEL), Entry(2, CANCEL)), "streams_order"),
    (RoundPlan.of(Entry(-1, OPEN, 0, 1), _GOOD), "streams_order"),
    (RoundPlan.of(_GOOD, cuts=[-1]), "cut_outside"),
    (RoundPlan.of(_GOOD, cuts=[1 << 40]), "cut_outside"),
    (RoundPlan.of(Entry(1, CONTINUE, HELD, 4), cuts=[3, 1]), "cut_order"),
    (RoundPlan.of(Entry(1, CLOSE), cuts=[1]), "cut_outside"),
    (dataclasses.replace(_PLAN, firsts=_PLAN.firsts[:1]), "rows_count"),
    (dataclasses.replace(_PLAN, ops=(*_PLAN.ops, CLOSE)), "rows_count"),
    (_LyingPlan.of(_GOOD, Entry(2, CONTINUE, HELD, 2)), "rows_count"),
)


def test_plans_of_wild_numbers_are_refused_by_name_and_change_nothing(stages: Stages) -> None:
    pipeline = busy(stages)
    for plan, reason in WILD_PLANS:
        assert_plan_refused(stages, pipeline, plan, reason)
    assert_unchanged(stages, pipeline)


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_bad_plan_is_refused_by_name_and_changes_nothing(stages: Stages, name: str) -> None:
    plan, reason = BAD_PLANS[name]
    pipeline = busy(stages)
    assert_plan_refused(stages, pipeline, plan, reason)
    assert_unchanged(stages, pipeline)


def test_a_plan_that_is_prepared_and_not_run_changes_nothing(stages: Stages) -> None:
    pipeline = busy(stages)
    cut, end, new = Entry(1, CONTINUE, HELD - 3, 2), Entry(2, CLOSE), Entry(9, OPEN, 0, 1)
    for engine in pipeline.engines[1:]:
        if not isinstance(engine, Preparing):
            pytest.skip("the engine prepares nothing")
        engine.prepare(RoundPlan.of(cut, end, new))
    assert_unchanged(stages, pipeline)


def test_rows_beyond_the_context_are_refused(stages: Stages) -> None:
    pipeline = stages.split()
    context, most = stages.settings.context, stages.settings.rows_max
    pipeline.play(chunked(1, stages.ids(1, context), most))
    plan = RoundPlan.of(Entry(1, CONTINUE, context, 1))
    assert_plan_refused(stages, pipeline, plan, "context_overrun")
    before = RoundPlan.of(Entry(1, CONTINUE, context - 1, 1))
    pipeline.round(before, np.zeros(1, dtype=np.int64))


def test_more_rows_than_a_round_may_have_are_refused(stages: Stages) -> None:
    pipeline = busy(stages)
    rows = stages.settings.rows_max // 2 + 1
    plan = RoundPlan.of(Entry(1, CONTINUE, HELD, rows), Entry(2, CONTINUE, HELD, rows))
    assert_plan_refused(stages, pipeline, plan, "too_many_rows")
    assert_unchanged(stages, pipeline)


def test_more_streams_than_slots_are_refused(stages: Stages) -> None:
    pipeline = busy(stages)
    plan = RoundPlan.of(Entry(8, OPEN, 0, 1), Entry(9, OPEN, 0, 1))
    assert_plan_refused(stages, pipeline, plan, "streams_full")
    assert_unchanged(stages, pipeline)


def test_more_entries_than_slots_are_refused(stages: Stages) -> None:
    pipeline = busy(stages)
    entries = [Entry(stream, CLOSE) for stream in (1, 2, 3)]
    opens = [Entry(8, OPEN, 0, 1), Entry(9, OPEN, 0, 1)]
    assert_plan_refused(stages, pipeline, RoundPlan.of(*entries, *opens), "too_many_streams")
    assert_unchanged(stages, pipeline)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_buffer_of_another_size_is_refused(stages: Stages, off: int) -> None:
    pipeline = busy(stages)
    plan = RoundPlan.of(_GOOD)
    size = 2 * row_bytes(pipeline.engines[0].describe())
    right, wrong = rows_buffer(size), rows_buffer(size + off)
    ids = np.zeros(2, dtype=np.int64)
    lead, follower = pipeline.engines[0], pipeline.engines[-1]
    assert_refused("rows_size", lambda: lead.run_first(plan, ids, wrong))
    assert_refused("rows_size", lambda: follower.run(plan, right, wrong))
    assert_refused("rows_size", lambda: follower.run(plan, wrong, right))
    assert_refused("rows_size", lambda: lead.run_head(wrong, 2))
    assert_unchanged(stages, pipeline)


def test_a_buffer_of_another_kind_is_refused(stages: Stages) -> None:
    pipeline = busy(stages)
    plan, follower = RoundPlan.of(_GOOD), pipeline.engines[-1]
    size = 2 * row_bytes(pipeline.engines[0].describe())
    right, read_only = rows_buffer(size), rows_buffer(size)
    read_only.flags.writeable = False
    strided = rows_buffer(2 * size)[::2]
    square, words = rows_buffer(size).reshape(2, -1), rows_buffer(size).view(np.uint32)
    for bad in (square, words):
        assert_refused("rows_size", lambda: follower.run(plan, bad, right))  # noqa: B023 - now
    assert_refused("rows_buffer", lambda: follower.run(plan, strided, right))
    assert_refused("rows_buffer", lambda: follower.run(plan, right, strided))
    assert_refused("rows_buffer", lambda: follower.run(plan, right, read_only))
    assert_unchanged(stages, pipeline)


@pytest.mark.parametrize("rows", [-1, 1 << 40])
def test_a_head_over_a_wild_count_of_rows_is_refused(stages: Stages, rows: int) -> None:
    pipeline = busy(stages)
    buffer = rows_buffer(row_bytes(pipeline.engines[0].describe()))
    assert_refused("too_many_rows", lambda: pipeline.engines[0].run_head(buffer, rows))
    assert_unchanged(stages, pipeline)


@pytest.mark.parametrize("bad", [-1, 1 << 40, None])
def test_token_ids_outside_the_vocabulary_are_refused(stages: Stages, bad: int | None) -> None:
    pipeline = busy(stages)
    plan = RoundPlan.of(_GOOD)
    ids = np.array([1, stages.family.vocab if bad is None else bad], dtype=np.int64)
    out = rows_buffer(2 * row_bytes(pipeline.engines[0].describe()))
    assert_refused("token_id", lambda: pipeline.engines[0].run_first(plan, ids, out))
    assert_unchanged(stages, pipeline)


def test_another_count_of_token_ids_is_refused(stages: Stages) -> None:
    pipeline = busy(stages)
    out = rows_buffer(2 * row_bytes(pipeline.engines[0].describe()))
    plan, lead = RoundPlan.of(_GOOD), pipeline.engines[0]
    for ids in (np.zeros(3, dtype=np.int64), np.zeros((2, 1), np.int64), np.zeros(2, np.int32)):
        assert_refused("rows_size", lambda: lead.run_first(plan, ids, out))  # noqa: B023 - now
    assert_unchanged(stages, pipeline)


def test_a_follower_refuses_to_embed_and_to_make_logits(stages: Stages) -> None:
    layers = stages.family.layers
    follower = stages.load(stages.cuts()[-1] if layers > 1 else 0, layers, lead=False)
    size = row_bytes(follower.describe())
    plan = RoundPlan.of(Entry(1, OPEN, 0, 1))
    ids = np.zeros(1, dtype=np.int64)
    assert_refused("engine_role", lambda: follower.run_first(plan, ids, rows_buffer(size)))
    assert_refused("engine_role", lambda: follower.run_head(rows_buffer(size), 1))
    follower.run(told(plan), rows_buffer(size) * 0, rows_buffer(size))
