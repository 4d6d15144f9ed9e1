"""Promises about streams: slots, cuts back to a position, saved states, and buffers.

A promise that an engine need not keep (save, keep) is skipped where its description says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, Preparing
from stagelink_conformance.bystanders import assert_refused
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import chunked, step
from stagelink_conformance.stages import assert_same_bits, assert_same_bytes, keep, save

if TYPE_CHECKING:
    from stagelink_conformance.pipeline import Pipeline
    from stagelink_conformance.stages import Stages


@pytest.mark.parametrize("op", [CLOSE, CANCEL])
def test_a_stream_that_ends_frees_its_slot(stages: Stages, op: int) -> None:
    ids = stages.ids(1, 6)
    pipeline = stages.halves()
    most = stages.settings.streams_max
    for stream in range(1, most + 1):
        pipeline.play(chunked(stream, ids, 6))
    pipeline.play([step(Entry(2, op), ids=[])])
    expected = stages.halves().play(chunked(most + 1, ids, 6))
    assert_same_bits(pipeline.play(chunked(most + 1, ids, 6)), expected)


def test_a_slot_freed_in_a_plan_serves_an_open_of_the_same_plan(stages: Stages) -> None:
    ids = stages.ids(2, 6)
    pipeline = stages.halves()
    most = stages.settings.streams_max
    for stream in range(1, most + 1):
        pipeline.play(chunked(stream, ids, 6))
    both = step(Entry(1, CLOSE), Entry(most + 1, OPEN, 0, 6), ids=ids)
    expected = stages.halves().play(chunked(most + 1, ids, 6))
    assert_same_bits(pipeline.play([both]), expected)


def test_a_continue_at_an_earlier_position_equals_never_having_drafted(stages: Stages) -> None:
    ids, drafts, after = stages.ids(3, 20), stages.ids(4, 5), stages.ids(5, 3)
    pipeline = stages.halves()
    pipeline.play([*chunked(1, ids, 20), *chunked(1, drafts, 5, at=20)])
    plain = stages.halves()
    plain.play([*chunked(1, ids, 20), *chunked(1, drafts[:2], 5, at=20)])
    kept = pipeline.play(chunked(1, after, 1, at=22))
    # The two kept drafts were computed with three more rows here: another composition.
    for one, other in zip(kept, plain.play(chunked(1, after, 1, at=22)), strict=True):
        stages.assert_close(one, other)
    again = stages.halves()
    again.play(chunked(1, ids, 20))
    dropped = stages.halves()
    dropped.play([*chunked(1, ids, 20), *chunked(1, drafts, 5, at=20)])
    tail = chunked(1, after, 1, at=20)
    assert_same_bits(dropped.play(tail), again.play(tail))


def test_keep_equals_never_having_drafted(stages: Stages) -> None:
    ids, after = stages.ids(6, 20), stages.ids(8, 3)
    pipeline = stages.halves()
    pipeline.play([*chunked(1, ids, 20), *chunked(1, stages.ids(7, 5), 5, at=20)])
    for engine in pipeline.engines:
        keep(engine, 1, 20)
    plain = stages.halves()
    plain.play(chunked(1, ids, 20))
    tail = chunked(1, after, 1, at=20)
    assert_same_bits(pipeline.play(tail), plain.play(tail))


def test_keep_refuses_a_position_that_the_stream_does_not_hold(stages: Stages) -> None:
    whole = stages.whole()
    whole.play(chunked(1, stages.ids(6, 8), 8))
    engine = whole.engines[0]
    keep(engine, 1, 8)
    for position in (9, -1, 1 << 40):
        assert_refused("wrong_position", lambda: engine.keep(1, position))  # noqa: B023 - now
    assert_refused("unknown_stream", lambda: engine.keep(2, 0))


def _saved(stages: Stages) -> tuple[Pipeline, list[bytes]]:
    """Run a stream and save it on every stage."""
    pipeline = stages.halves()
    pipeline.play(chunked(1, stages.ids(9, 21), 8))
    states = [save(engine, 1) for engine in pipeline.engines]
    assert all(isinstance(state, bytes) for state in states)
    return pipeline, states


def test_a_restored_state_continues_with_the_same_bits(stages: Stages) -> None:
    pipeline, states = _saved(stages)
    expected = pipeline.play(chunked(1, stages.ids(10, 4), 1, at=21))
    fresh = stages.halves()
    fresh.play(chunked(2, stages.ids(11, 30), 30))
    for engine, state in zip(fresh.engines, states, strict=True):
        engine.restore(7, state)
    assert_same_bits(fresh.play(chunked(7, stages.ids(10, 4), 1, at=21)), expected)


def test_nothing_of_a_buffer_is_used_after_the_call(stages: Stages) -> None:
    ids = np.array(stages.ids(12, 16), dtype=np.int64)
    tail = chunked(1, stages.ids(13, 3), 1, at=16)
    pipeline = stages.halves()
    lent = ids.copy()
    rows = pipeline.send(RoundPlan.of(Entry(1, OPEN, 0, 16)), lent)
    lent[...] = 0
    rows[...] = 0xFF
    plain = stages.halves()
    plain.scribble = 0
    plain.play(chunked(1, ids.tolist(), 16))
    assert_same_bits(pipeline.play(tail), plain.play(tail))


def test_logits_stay_as_they_are_when_the_engine_goes_on(stages: Stages) -> None:
    whole = stages.whole()
    first = whole.play(chunked(1, stages.ids(14, 8), 8))[0]
    before = first.logits.copy()
    whole.play(chunked(2, stages.ids(15, 8), 8))
    assert_same_bytes(first.logits, before, "logits that were returned before the engine went on")


def test_a_plan_without_streams_changes_nothing(stages: Stages) -> None:
    ids, tail = stages.ids(16, 10), chunked(1, stages.ids(17, 2), 1, at=10)
    pipeline, plain = stages.halves(), stages.halves()
    for one in (pipeline, plain):
        one.play(chunked(1, ids, 10))
    pipeline.play([step(ids=[])])
    assert_same_bits(pipeline.play(tail), plain.play(tail))


def test_an_entry_may_continue_while_others_rest(stages: Stages) -> None:
    pipeline = stages.halves()
    ids = stages.ids(18, 12)
    pipeline.play([*chunked(1, ids, 12), *chunked(2, ids, 12)])
    pipeline.play([step(Entry(1, CONTINUE, 12, 4), ids=stages.ids(19, 4))])
    rested = pipeline.play(chunked(2, stages.ids(20, 2), 1, at=12))
    plain = stages.halves()
    plain.play(chunked(2, ids, 12))
    assert_same_bits(rested, plain.play(chunked(2, stages.ids(20, 2), 1, at=12)))


@pytest.mark.parametrize("between", ["close", "keep"])
def test_a_prepared_plan_is_checked_again_where_the_state_has_changed(
    stages: Stages, between: str
) -> None:
    pipeline = stages.halves()
    pipeline.play(chunked(1, stages.ids(6, 10), 10))
    follower = pipeline.engines[1]
    if not isinstance(follower, Preparing):
        pytest.skip("the engine prepares nothing")
    plan = RoundPlan.of(Entry(1, CONTINUE, 10, 1))
    follower.prepare(plan)
    if between == "keep":
        keep(follower, 1, 9)
    else:
        follower.run(RoundPlan.of(Entry(1, CLOSE)), rows_buffer(0), rows_buffer(0))
    rows = rows_buffer(row_bytes(follower.describe()))
    reason = "wrong_position" if between == "keep" else "unknown_stream"
    assert_refused(reason, lambda: follower.run(plan, rows, rows))
