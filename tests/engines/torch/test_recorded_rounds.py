"""Decode rounds that are recorded and replayed, on the CPU: every family, through the host's twins.

What only a GPU can show is in tests/gpu.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from tests.engines.torch.on_device import as_on_a_device, put_on_twins
from tests.engines.torch.rig import (
    CHUNKINGS,
    CUTS,
    in_chunks,
    make_pipeline,
    make_stage,
    token_ids,
)
from tests.engines.torch.rounds import KINDS, prompts, scripts_of_a_cut, together
from tests.engines.torch.tape import TapeRecorder

from stagelink.engine import CLOSE, CONTINUE, OPEN
from stagelink_conformance.families import FAMILIES
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import random_script
from stagelink_conformance.stages import assert_same_bits
from stagelink_torch.graphs import BUCKET_MIN, EagerRecorder, decode_bucket
from stagelink_torch.layer import Batch, Piece, Setup

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETUP = Setup(torch.device("cpu"), torch.float32, torch.float32, 512, 4, 8)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_recorded_rounds_are_close_to_plain_ones_and_split_as_whole(
    tiny: Callable[..., Path], name: str
) -> None:
    script = in_chunks(token_ids(count=88), [80, *[1] * 8])
    plain = make_pipeline(tiny(name), context=512).play(script)
    pipeline = as_on_a_device(tiny(name))
    recorded = pipeline.play(script)
    for one, other in zip(recorded, plain, strict=True):
        assert np.abs(one.logits - other.logits).max() <= 1e-4
    assert_same_bits(as_on_a_device(tiny(name), CUTS[-1]).play(script), recorded)
    assert len(pipeline.engines[0]._loaded.runner._shapes) == 1


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_replay_has_the_bits_of_the_same_steps_without_one_for_any_streams_and_slots(
    tiny: Callable[..., Path], name: str
) -> None:
    ids = {stream: token_ids(stream, 60) for stream in (1, 2, 3)}
    held = {1: 40, 2: 17, 3: 29}
    script = prompts(ids, held)
    for streams in ((1, 2), (2, 3), (1, 3), (1, 2, 3), (2, 3)):
        part = {stream: held[stream] for stream in streams}
        script += together(part, ids, 2)
        held |= part
    plain = make_pipeline(tiny(name), context=512).play(script)
    replayed, eager = (
        as_on_a_device(tiny(name), [3], one) for one in (TapeRecorder, EagerRecorder)
    )
    outcomes = replayed.play(script)
    assert_same_bits(outcomes, eager.play(script))
    for one, other in zip(outcomes, plain, strict=True):
        assert np.abs(one.logits - other.logits).max() <= 1e-4
    assert len(replayed.engines[1]._loaded.runner._shapes) == 2


@pytest.mark.parametrize("name", KINDS)
def test_random_rounds_of_many_streams_split_as_whole(tiny: Callable[..., Path], name: str) -> None:
    settings = {"context": 300, "rows_max": 96, "streams_max": 4}
    limits = make_stage(tiny(name), 0, 1, **settings)._settings
    script = random_script(3, 255, limits, 24)
    expected = as_on_a_device(tiny(name), **settings).play(script)
    assert_same_bits(as_on_a_device(tiny(name), [2, 5], **settings).play(script), expected)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("back", [1, 7, 16])
def test_a_cut_behind_recorded_rounds_equals_a_run_that_stopped_there(
    tiny: Callable[..., Path], name: str, back: int
) -> None:
    tails = []
    for before, after in scripts_of_a_cut(back):
        pipeline = as_on_a_device(tiny(name))
        pipeline.play(before)
        tails.append(pipeline.play(after))
    assert_same_bits(*tails)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("ending", [CLOSE, CONTINUE])
def test_a_recorded_round_sees_nothing_of_rows_that_were_no_numbers(
    tiny: Callable[..., Path], name: str, ending: int
) -> None:
    # A recorded round reads past its streams' ends, and multiplies what is there by zero.
    used, fresh = as_on_a_device(tiny(name), [4]), as_on_a_device(tiny(name), [4])
    follower, size = used.engines[1], 20 * row_bytes(used.engines[1].describe())
    rows = rows_buffer(size)
    rows[...] = 0xFF
    follower.run(RoundPlan.of(Entry(9, OPEN, 0, 20)), rows, rows)
    if ending == CLOSE:
        follower.run(RoundPlan.of(Entry(9, CLOSE)), rows_buffer(0), rows_buffer(0))
    else:
        follower.keep(9, 0)
        rows = rows_buffer(size // 20) * 0
        follower.run(RoundPlan.of(Entry(9, CONTINUE, 0, 1)), rows, rows)
        follower.run(RoundPlan.of(Entry(9, CLOSE)), rows_buffer(0), rows_buffer(0))
    script = in_chunks(token_ids(count=6), [3, 1, 1, 1])
    assert_same_bits(used.play(script), fresh.play(script))


@pytest.mark.parametrize("name", KINDS)
def test_a_stream_beside_one_of_no_numbers_keeps_its_own(
    tiny: Callable[..., Path], name: str
) -> None:
    outcomes = []
    for bad in (0xFF, 0x00):
        stage = as_on_a_device(tiny(name), [4]).engines[1]
        size = row_bytes(stage.describe())
        good = np.arange(2 * size) % 63
        stage.run(RoundPlan.of(Entry(1, OPEN, 0, 2)), *_twice(good))
        stage.run(RoundPlan.of(Entry(2, OPEN, 0, 2)), *_twice(np.full(2 * size, bad)))
        both = np.concatenate([good[:size], np.full(size, bad)])
        for at in (2, 3):
            into, out = _twice(both)
            stage.run(RoundPlan.of(Entry(1, CONTINUE, at, 1), Entry(2, CONTINUE, at, 1)), into, out)
        outcomes.append(out[:size].tobytes())
    assert outcomes[0] == outcomes[1]


def _twice(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an aligned copy of a round's rows, and a buffer for what comes of them."""
    into, out = rows_buffer(rows.size), rows_buffer(rows.size)
    into[...] = rows
    return into, out


class _Full(TapeRecorder):
    """A device without memory for a recording."""

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        super().record(work)
        raise torch.OutOfMemoryError("no memory for a graph")


@pytest.mark.parametrize("cause", ["shapes", "memory"])
@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_a_round_without_room_for_its_recording_has_the_bits_of_a_replay(
    tiny: Callable[..., Path],
    name: str,
    cause: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = in_chunks(token_ids(), CHUNKINGS["prompt_then_rows"])
    recorded = as_on_a_device(tiny(name)).play(script)
    if cause == "shapes":
        monkeypatch.setattr("stagelink_torch.graphs._RECORDINGS_MAX", 0)
    pipeline = as_on_a_device(tiny(name), recorder=_Full if cause == "memory" else TapeRecorder)
    with caplog.at_level(logging.WARNING, "stagelink.torch"):
        assert_same_bits(pipeline.play(script), recorded)
    assert not pipeline.engines[0]._loaded.runner._shapes
    assert ["no memory for a graph" in one.message for one in caplog.records] == (
        [True] if cause == "memory" else []
    )


def test_the_usual_shapes_are_recorded_before_the_first_round_and_leave_nothing(
    tiny: Callable[..., Path],
) -> None:
    warmed, fresh = (
        make_stage(tiny("qwen3_next"), 0, 8, context=512, streams_max=3) for _ in range(2)
    )
    recorder = TapeRecorder()
    put_on_twins(warmed, recorder)
    put_on_twins(fresh, TapeRecorder())
    warmed.warm()
    shapes = warmed._loaded.runner._shapes
    assert set(shapes) == {(n, bucket) for n in (1, 2, 3) for bucket in (256, 512)}
    assert warmed._loaded.streams.free == 3
    scripts = [in_chunks(token_ids(s, 24), [20, 1, 1, 1, 1], s) for s in (1, 2)]
    for script in scripts:
        for one in script:
            outs = []
            for engine in (warmed, fresh):
                outs.append(rows_buffer(one.token_ids.size * row_bytes(engine.describe())))
                engine.run_first(one.plan, one.token_ids, outs[-1])
            assert outs[0].tobytes() == outs[1].tobytes()
    assert len(recorder.operations) == 6


def test_many_streams_and_a_long_context_are_not_all_recorded_at_the_start(
    tiny: Callable[..., Path],
) -> None:
    engine = make_stage(tiny("llama"), 0, 1, context=512, streams_max=12)
    put_on_twins(engine, TapeRecorder())
    engine.warm()
    shapes = engine._loaded.runner._shapes
    assert len(shapes) == 16
    assert {(1, 256), (8, 256), (1, 512), (7, 512)} <= set(shapes)


def test_only_rounds_of_single_rows_are_recorded_over_powers_of_two() -> None:
    def bucket(*spans: tuple[int, int]) -> int:
        begin, pieces = 0, []
        for slot, (first, rows) in enumerate(spans):
            pieces.append(Piece(slot, first, begin, begin + rows))
            begin += rows
        return decode_bucket(Batch.of(pieces, SETUP), SETUP.context)

    assert bucket((0, 1)) == BUCKET_MIN
    assert bucket((BUCKET_MIN - 1, 1), (3, 1)) == BUCKET_MIN
    assert bucket((BUCKET_MIN, 1)) == 2 * BUCKET_MIN
    assert bucket((0, 1), (7, 2)) == 0


def test_a_round_over_too_many_positions_to_put_side_by_side_is_not_recorded() -> None:
    setup = dataclasses.replace(SETUP, context=1 << 17)

    def bucket(streams: int) -> int:
        pieces = [Piece(slot, (1 << 16) - 1, slot, slot + 1) for slot in range(streams)]
        return decode_bucket(Batch.of(pieces, setup), setup.context)

    assert bucket(4) == 1 << 16
    assert bucket(5) == 0
