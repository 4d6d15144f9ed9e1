"""The device's path on the CPU: slabs, lanes and recorded decode rounds, with their host twins.

What only a GPU can show is in tests/gpu.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from tests.engines.torch.rig import CHUNKINGS, CUTS, in_chunks, make_pipeline, token_ids

from stagelink.engine import CLOSE, CONTINUE, OPEN
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import step
from stagelink_conformance.stages import assert_same_bits
from stagelink_torch.attention import Attend, AttentionShape, _grouped, _packed
from stagelink_torch.graphs import BUCKET_MIN, EagerRecorder, GraphRunner, decode_bucket
from stagelink_torch.lanes import HostLanes
from stagelink_torch.layer import Batch, Piece, Setup
from stagelink_torch.machine import use_whole_precision
from stagelink_torch.transfer import SlabTransfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline

SETUP = Setup(torch.device("cpu"), torch.float32, torch.float32, 512, 4, 8)


def _as_on_a_device(folder: Path, cuts: Sequence[int] = ()) -> Pipeline:
    """Make stages that use slabs and recordings, as on CUDA, with the host's twins of both."""
    pipeline = make_pipeline(folder, cuts, context=512)
    for engine in pipeline.engines:
        loaded = engine._loaded
        width, setup = engine._family.row_width, engine._setup
        for slots in loaded.model.slots:
            slots._wipe_cut = True
        engine._loaded = dataclasses.replace(
            loaded,
            transfer=SlabTransfer(setup, width, HostLanes()),
            runner=GraphRunner(loaded.model, setup, width, EagerRecorder()),
        )
    return pipeline


@pytest.mark.parametrize("name", ["llama", "qwen3", "smollm3", "gemma3_text"])
def test_recorded_rounds_are_close_to_plain_ones_and_split_as_whole(
    tiny: Callable[..., Path], name: str
) -> None:
    script = in_chunks(token_ids(), CHUNKINGS["prompt_then_rows"])
    plain = make_pipeline(tiny(name), context=512).play(script)
    recorded = _as_on_a_device(tiny(name)).play(script)
    for one, other in zip(recorded, plain, strict=True):
        assert np.abs(one.logits - other.logits).max() <= 1e-4
    for cuts in CUTS:
        assert_same_bits(_as_on_a_device(tiny(name), cuts).play(script), recorded)


def test_a_recording_serves_any_streams_of_its_shape(tiny: Callable[..., Path]) -> None:
    ids = {1: token_ids(1, 40), 2: token_ids(2, 30), 3: token_ids(3, 50)}
    prompts = [one for s, own in ids.items() for one in in_chunks(own[:-2], [len(own) - 2], s)]
    pairs = [(1, 2), (2, 3), (1, 3)]
    held = {stream: len(own) - 2 for stream, own in ids.items()}
    rounds = []
    for pair in pairs:
        entries = [Entry(stream, CONTINUE, held[stream], 1) for stream in pair]
        rounds.append(step(*entries, ids=[ids[stream][held[stream]] for stream in pair]))
        for stream in pair:
            held[stream] += 1
    pipeline = _as_on_a_device(tiny("llama"))
    pipeline.play(prompts)
    got = pipeline.play(rounds)
    assert len(pipeline.engines[0]._loaded.runner._shapes) == 1
    plain = make_pipeline(tiny("llama"), context=512)
    plain.play(prompts)
    for one, other in zip(got, plain.play(rounds), strict=True):
        assert np.abs(one.logits - other.logits).max() <= 1e-4


class _Full:
    """A device without memory for a recording."""

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        work()
        raise torch.OutOfMemoryError("no memory for a graph")


@pytest.mark.parametrize("cause", ["shapes", "memory"])
def test_a_round_without_room_for_its_recording_has_the_bits_of_a_replay(
    tiny: Callable[..., Path], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = in_chunks(token_ids(), CHUNKINGS["prompt_then_rows"])
    recorded = _as_on_a_device(tiny("llama")).play(script)
    pipeline = _as_on_a_device(tiny("llama"))
    runner = pipeline.engines[0]._loaded.runner
    if cause == "memory":
        runner._recorder = _Full()
    else:
        monkeypatch.setattr("stagelink_torch.graphs._RECORDINGS_MAX", 0)
    assert_same_bits(pipeline.play(script), recorded)
    assert not runner._shapes


@pytest.mark.parametrize("ending", [CLOSE, CONTINUE])
def test_a_recorded_round_sees_nothing_of_rows_that_were_no_numbers(
    tiny: Callable[..., Path], ending: int
) -> None:
    # A recorded round reads past its streams' ends, and multiplies what is there by zero.
    used, fresh = _as_on_a_device(tiny("llama"), [4]), _as_on_a_device(tiny("llama"), [4])
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


def test_a_group_of_heads_as_rows_attends_as_heads_do() -> None:
    generator = torch.Generator().manual_seed(3)
    queries, keys, values = (
        torch.randn(shape, generator=generator)
        for shape in ((2, 5, 6, 16), (2, 3, 9, 16), (2, 3, 9, 16))
    )
    mask = torch.rand(2, 1, 5, 9, generator=generator) < 0.7
    mask[..., 0] = True
    shape = AttentionShape(6, 3, 16, 0.3)
    one, other = (
        form(queries, (keys, values), mask, shape, causal=False) for form in (_grouped, _packed)
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_sinks_in_a_bucket_attend_as_in_a_piece() -> None:
    generator = torch.Generator().manual_seed(4)
    shape = AttentionShape(4, 2, 16, 0.25, window=6)
    attend = Attend(shape, SETUP, torch.randn(4, generator=generator))
    slots = attend.make_slots()
    for slot, count in ((0, 20), (2, 9)):
        batch = Batch.of([Piece(slot, 0, 0, count)], SETUP)
        slots.put(*torch.randn(2, count, 2, 16, generator=generator), batch)
    queries = torch.randn(2, 4, 16, generator=generator)
    pieces = [Piece(0, 19, 0, 1), Piece(2, 8, 1, 2)]
    one = attend(queries, Batch.of(pieces, SETUP), slots)
    other = attend(queries, Batch.of(pieces, SETUP, bucket=32), slots)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_slab_is_written_again_only_after_the_device_has_read_it() -> None:
    lanes = HostLanes()
    transfer = SlabTransfer(SETUP, 3, lanes)
    for value in (1.0, 2.0, 3.0):
        rows = transfer.take(torch.full((2, 3), value), 4)
        assert torch.equal(rows, torch.tensor([[value] * 3] * 2 + [[0.0] * 3] * 2))
    record = lanes.record
    # The third batch uses the first slab again: the host waits for its copy, the copy for the use.
    assert record.index("host waits side 2") < record.index("side waits compute 3")
    assert record.index("compute waits side 2") < record.index("mark compute 3")


def test_products_on_a_device_keep_the_precision_of_their_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "restored afterwards")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    products = torch.backends.cuda.matmul
    before = products.allow_tf32, products.allow_bf16_reduced_precision_reduction
    products.allow_tf32 = products.allow_bf16_reduced_precision_reduction = True
    try:
        use_whole_precision()
        assert not products.allow_tf32
        assert not products.allow_bf16_reduced_precision_reduction
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        products.allow_tf32, products.allow_bf16_reduced_precision_reduction = before


def test_the_first_rows_come_after_their_slab_was_made() -> None:
    lanes = HostLanes()
    SlabTransfer(SETUP, 3, lanes).take(torch.ones(2, 3), 4)
    assert lanes.record[:3] == ["mark compute 1", "side begins", "side waits compute 1"]


def test_rows_given_are_in_place_after_finish_and_copied_after_their_computing() -> None:
    lanes = HostLanes()
    transfer = SlabTransfer(SETUP, 3, lanes)
    targets = [torch.zeros(2, 3) for _ in range(3)]
    for value, target in enumerate(targets, start=1):
        transfer.give(torch.full((2, 3), float(value)), target)
    transfer.finish()
    assert [float(target.mean()) for target in targets] == [1.0, 2.0, 3.0]
    assert lanes.record[1:4] == ["mark compute 2", "side begins", "side waits compute 2"]
    assert [one for one in lanes.record if one.startswith("host waits")] == [
        "host waits side 3",
        "host waits side 5",
        "host waits side 7",
    ]


def test_padding_behind_a_batch_is_zeros_though_the_slab_held_rows() -> None:
    transfer = SlabTransfer(SETUP, 2, HostLanes())
    for _ in range(2):
        transfer.take(torch.ones(8, 2), 8)
    assert torch.equal(transfer.take(torch.ones(1, 2), 4).sum(dim=1), torch.tensor([2.0, 0, 0, 0]))
