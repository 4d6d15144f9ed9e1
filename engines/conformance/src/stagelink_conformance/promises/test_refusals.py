"""Promises about errors: a call that an engine refuses changes nothing at all.

Each test lets a stage refuse, and then goes on as if the call had never been made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, EngineError
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import chunked
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from stagelink_conformance.pipeline import Outcome, Pipeline
    from stagelink_conformance.stages import Stages

HELD = 10

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


def _busy(stages: Stages) -> Pipeline:
    """Make two stages with streams 1 to 3 open at position 10."""
    pipeline = stages.halves()
    for stream in (1, 2, 3):
        pipeline.play(chunked(stream, stages.ids(stream, HELD), HELD))
    return pipeline


def _go_on(stages: Stages, pipeline: Pipeline) -> list[Outcome]:
    """Show everything that a refused call could have changed: positions, KV and free slots."""
    ids = stages.ids(50, 6)
    script = chunked(1, ids, 1, at=HELD) + chunked(2, ids, 6, at=HELD) + chunked(3, ids, 2, at=HELD)
    script += chunked(9, ids, 6)
    return pipeline.play(script)


def _assert_unchanged(stages: Stages, pipeline: Pipeline) -> None:
    assert_same_bits(_go_on(stages, pipeline), _go_on(stages, _busy(stages)))


def _refused(stages: Stages, pipeline: Pipeline, plan: RoundPlan, reason: str | None) -> None:
    """Let every stage refuse a plan with buffers that fit it."""
    size = plan.rows_total * row_bytes(pipeline.engines[0].describe())
    ids = np.array(stages.ids(60, plan.rows_total), dtype=np.int64)
    for rank, engine in enumerate(pipeline.engines):
        source, run = (ids, engine.run_first) if rank == 0 else (rows_buffer(size), engine.run)
        with pytest.raises(EngineError) as caught:
            run(plan, source, rows_buffer(size))
        assert reason is None or caught.value.reason == reason


@pytest.mark.parametrize("name", BAD_PLANS)
def test_a_bad_plan_is_refused_by_name_and_changes_nothing(stages: Stages, name: str) -> None:
    plan, reason = BAD_PLANS[name]
    pipeline = _busy(stages)
    _refused(stages, pipeline, plan, reason)
    _assert_unchanged(stages, pipeline)


def test_rows_beyond_the_context_are_refused(stages: Stages) -> None:
    pipeline = stages.split()
    context, most = stages.settings.context, stages.settings.rows_max
    pipeline.play(chunked(1, stages.ids(1, context), most))
    plan = RoundPlan.of(Entry(1, CONTINUE, context, 1))
    _refused(stages, pipeline, plan, "context_overrun")
    before = RoundPlan.of(Entry(1, CONTINUE, context - 1, 1))
    pipeline.round(before, np.zeros(1, dtype=np.int64))


def test_more_rows_than_a_round_may_have_are_refused(stages: Stages) -> None:
    pipeline = _busy(stages)
    rows = stages.settings.rows_max // 2 + 1
    plan = RoundPlan.of(Entry(1, CONTINUE, HELD, rows), Entry(2, CONTINUE, HELD, rows))
    _refused(stages, pipeline, plan, "too_many_rows")
    _assert_unchanged(stages, pipeline)


def test_more_streams_than_slots_are_refused(stages: Stages) -> None:
    pipeline = _busy(stages)
    plan = RoundPlan.of(Entry(8, OPEN, 0, 1), Entry(9, OPEN, 0, 1))
    _refused(stages, pipeline, plan, "streams_full")
    _assert_unchanged(stages, pipeline)


def test_more_entries_than_slots_are_refused(stages: Stages) -> None:
    pipeline = _busy(stages)
    entries = [Entry(stream, CLOSE) for stream in (1, 2, 3)]
    opens = [Entry(8, OPEN, 0, 1), Entry(9, OPEN, 0, 1)]
    _refused(stages, pipeline, RoundPlan.of(*entries, *opens), "too_many_streams")
    _assert_unchanged(stages, pipeline)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_buffer_of_another_size_is_refused(stages: Stages, off: int) -> None:
    pipeline = _busy(stages)
    plan = RoundPlan.of(_GOOD)
    size = 2 * row_bytes(pipeline.engines[0].describe())
    right, wrong = rows_buffer(size), rows_buffer(size + off)
    ids = np.zeros(2, dtype=np.int64)
    with pytest.raises(EngineError) as caught:
        pipeline.engines[0].run_first(plan, ids, wrong)
    assert caught.value.reason == "rows_size"
    for first, second in ((right, wrong), (wrong, right)):
        with pytest.raises(EngineError) as caught:
            pipeline.engines[-1].run(plan, first, second)
        assert caught.value.reason == "rows_size"
    _assert_unchanged(stages, pipeline)


@pytest.mark.parametrize("bad", [-1, 1 << 40, None])
def test_token_ids_outside_the_vocabulary_are_refused(stages: Stages, bad: int | None) -> None:
    pipeline = _busy(stages)
    plan = RoundPlan.of(_GOOD)
    ids = np.array([1, stages.family.vocab if bad is None else bad], dtype=np.int64)
    out = rows_buffer(2 * row_bytes(pipeline.engines[0].describe()))
    with pytest.raises(EngineError) as caught:
        pipeline.engines[0].run_first(plan, ids, out)
    assert caught.value.reason == "token_id"
    _assert_unchanged(stages, pipeline)


def test_another_count_of_token_ids_is_refused(stages: Stages) -> None:
    pipeline = _busy(stages)
    out = rows_buffer(2 * row_bytes(pipeline.engines[0].describe()))
    with pytest.raises(EngineError):
        pipeline.engines[0].run_first(RoundPlan.of(_GOOD), np.zeros(3, dtype=np.int64), out)
    _assert_unchanged(stages, pipeline)


def test_a_follower_refuses_to_embed_and_to_make_logits(stages: Stages) -> None:
    layers = stages.family.layers
    follower = stages.load(layers - 1, layers, lead=False)
    size = row_bytes(follower.describe())
    plan = RoundPlan.of(Entry(1, OPEN, 0, 1))
    with pytest.raises(EngineError):
        follower.run_first(plan, np.zeros(1, dtype=np.int64), rows_buffer(size))
    with pytest.raises(EngineError):
        follower.run_head(rows_buffer(size), 1)
    follower.run(plan, rows_buffer(size) * 0, rows_buffer(size))
