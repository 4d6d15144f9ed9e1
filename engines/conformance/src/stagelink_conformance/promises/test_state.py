"""Promises about a stream's state: verifies that are cut back, windows that are passed, saves.

They hold for every kind of layer: keys and values, windows, latents, convolutions, recurrent state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stagelink.engine import CONTINUE, EngineError
from stagelink_conformance.bystanders import assert_plan_refused
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import chunked, step
from stagelink_conformance.stages import assert_same_bits, keep, save

if TYPE_CHECKING:
    from stagelink.engine import StageEngine
    from stagelink_conformance.pipeline import Outcome
    from stagelink_conformance.stages import Stages

VERIFY = 8
# Rows before a verify: fewer than a convolution reads and a window holds, and far past both.
PROMPTS = (3, 70)


def _prompted(stages: Stages, rows: int) -> Pipeline:
    """Make two stages with stream 1 at position ``rows``, prompted in ragged chunks."""
    pipeline = stages.halves()
    at, ids = 0, stages.ids(31, rows)
    for chunk in (33, 7, 1, rows):
        part = ids[at : at + chunk]
        pipeline.play(chunked(1, part, max(len(part), 1), at=at))
        at += len(part)
    return pipeline


def _verify(stages: Stages, pipeline: Pipeline, rows: int, count: int = VERIFY) -> None:
    """Run the first ``count`` rows of a verify at position ``rows``."""
    pipeline.play(chunked(1, stages.ids(32, VERIFY)[:count], VERIFY, at=rows))


def _keep(pipeline: Pipeline, position: int) -> None:
    for engine in pipeline.engines:
        keep(engine, 1, position)


def _saved(pipeline: Pipeline) -> list[bytes]:
    return [save(engine, 1) for engine in pipeline.engines]


def _after(stages: Stages, pipeline: Pipeline, at: int, stream: int = 1) -> list[Outcome]:
    """Go on from position ``at`` with single rows and a chunk."""
    ids = stages.ids(33, 8)
    script = chunked(stream, ids[:3], 1, at=at)
    return pipeline.play(script + chunked(stream, ids[3:], 5, at=at + 3))


@pytest.mark.parametrize("rows", PROMPTS)
def test_nothing_of_a_rejected_verify_stays(stages: Stages, rows: int) -> None:
    pipeline, plain = _prompted(stages, rows), _prompted(stages, rows)
    _verify(stages, pipeline, rows)
    _keep(pipeline, rows)
    assert _saved(pipeline) == _saved(plain)
    assert_same_bits(_after(stages, pipeline, rows), _after(stages, plain, rows))


@pytest.mark.parametrize("kept", [1, 4, 7])
@pytest.mark.parametrize("rows", PROMPTS)
def test_a_verify_that_is_kept_in_part_goes_on_as_a_run_that_stopped(
    stages: Stages, rows: int, kept: int
) -> None:
    pipeline, plain = _prompted(stages, rows), _prompted(stages, rows)
    _verify(stages, pipeline, rows)
    _keep(pipeline, rows + kept)
    _verify(stages, plain, rows, kept)
    # The kept rows were computed beside others in one of the two: other compositions.
    assert [len(one) for one in _saved(pipeline)] == [len(one) for one in _saved(plain)]
    got, expected = _after(stages, pipeline, rows + kept), _after(stages, plain, rows + kept)
    for one, other in zip(got, expected, strict=True):
        stages.assert_close(one, other)


def test_a_stream_goes_back_as_far_as_is_kept_and_is_told_where_nothing_is(
    stages: Stages,
) -> None:
    engine = stages.load(0, stages.family.layers, lead=True)
    pipeline, rows = Pipeline([engine]), 90
    # Longer than what recurrent layers keep; the verify before the end can always be taken back.
    pipeline.play(chunked(1, stages.ids(35, rows), 30))
    _verify(stages, pipeline, rows)
    last = rows + VERIFY
    for position in (last, rows + 1, rows):
        keep(engine, 1, position)
    for position in (rows // 2, 1):
        before = save(engine, 1)
        if _is_gone(engine, position):
            late = RoundPlan.of(Entry(1, CONTINUE, position, 1))
            assert_plan_refused(stages, pipeline, late, "history_gone")
            assert save(engine, 1) == before
    keep(engine, 1, 0)
    ids = stages.ids(36, 20)
    again = [step(Entry(1, CONTINUE, 0, 20), ids=ids), *chunked(1, ids[:2], 1, at=20)]
    fresh = chunked(1, ids, 20) + chunked(1, ids[:2], 1, at=20)
    assert_same_bits(pipeline.play(again), stages.whole().play(fresh))


def _is_gone(engine: StageEngine, position: int) -> bool:
    """Cut stream 1 back; say whether that was refused, which only one code may do."""
    try:
        keep(engine, 1, position)
    except EngineError as error:
        if error.reason != "history_gone":
            raise
        return True
    return False


def test_a_stream_is_cut_back_again_and_again(stages: Stages) -> None:
    pipeline, plain = _prompted(stages, 40), _prompted(stages, 40)
    for draft in range(5):
        pipeline.play(chunked(1, stages.ids(40 + draft, 6), 6, at=40))
        _keep(pipeline, 40)
    assert_same_bits(_after(stages, pipeline, 40), _after(stages, plain, 40))


def test_a_verify_that_is_kept_whole_changes_nothing(stages: Stages) -> None:
    pipeline, plain = _prompted(stages, 40), _prompted(stages, 40)
    for one in (pipeline, plain):
        _verify(stages, one, 40)
    _keep(pipeline, 40 + VERIFY)
    assert _saved(pipeline) == _saved(plain)
    assert_same_bits(_after(stages, pipeline, 48), _after(stages, plain, 48))


@pytest.mark.parametrize("rows", PROMPTS)
def test_a_state_restored_elsewhere_goes_on_with_the_same_bits(stages: Stages, rows: int) -> None:
    pipeline = _prompted(stages, rows)
    states = _saved(pipeline)
    fresh = stages.halves()
    for engine, state in zip(fresh.engines, states, strict=True):
        engine.restore(7, state)
    expected = _after(stages, pipeline, rows)
    assert_same_bits(_after(stages, fresh, rows, stream=7), expected)


def test_a_restored_state_is_saved_as_it_was(stages: Stages) -> None:
    pipeline = _prompted(stages, 70)
    states = _saved(pipeline)
    for engine, state in zip(stages.halves().engines, states, strict=True):
        engine.restore(1, state)
        assert engine.save(1) == state


def test_a_stage_of_one_layer_has_the_bits_of_the_whole_past_every_window(stages: Stages) -> None:
    ids, script, at = stages.ids(34, 96), [], 0
    for chunk in (33, 7, 1, 5, 50):
        script += chunked(1, ids[at : at + chunk], chunk, at=at)
        at += chunk
    every = stages.split(*stages.cuts())
    assert_same_bits(every.play(script), stages.whole().play(script))
