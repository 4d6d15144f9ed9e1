"""CUDA graphs of the torch engine: every family, beside the same steps without a graph.

The same rounds run on the CPU in tests/engines/torch/test_recorded_rounds.py. Every test skips
where torch sees no device.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from tests.engines.torch.rig import CUTS, in_chunks, make_pipeline, make_stage, token_ids
from tests.engines.torch.rounds import KINDS, prompts, scripts_of_a_cut, together

from stagelink.engine import CLOSE, OPEN
from stagelink_conformance.families import FAMILIES
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import random_script
from stagelink_conformance.stages import assert_same_bits
from stagelink_torch.graphs import EagerRecorder, GraphRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline
    from stagelink_torch.graphs import Work

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no CUDA device here"
)


def _on_cuda(folder: Path, cuts: Sequence[int] = (), **settings: object) -> Pipeline:
    return make_pipeline(folder, cuts, **{"context": 512, "device": "cuda", **settings})


def _without_graphs(pipeline: Pipeline) -> Pipeline:
    """Let the stages run the steps of their recordings, one after the other."""
    for engine in pipeline.engines:
        loaded = engine._loaded
        runner = GraphRunner(loaded.model, engine._setup, EagerRecorder())
        engine._loaded = dataclasses.replace(loaded, runner=runner)
    return pipeline


def _recordings(pipeline: Pipeline) -> list[int]:
    """Return how many graphs each stage has; a capture that failed would have left none."""
    runners = [engine._loaded.runner for engine in pipeline.engines]
    assert not any(runner._is_full for runner in runners)
    return [len(runner._shapes) for runner in runners]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_graph_has_the_bits_of_the_same_steps_without_one(
    tiny: Callable[..., Path], name: str, dtype: str
) -> None:
    ids = {stream: token_ids(stream, 60) for stream in (1, 2, 3)}
    held = {1: 40, 2: 17, 3: 29}
    script = prompts(ids, held)
    for streams in ((1, 2), (2, 3), (1,), (1, 2, 3), (2, 3)):
        part = {stream: held[stream] for stream in streams}
        script += together(part, ids, 3)
        held |= part
    graph = _on_cuda(tiny(name, dtype), dtype=dtype)
    eager = _without_graphs(_on_cuda(tiny(name, dtype), dtype=dtype))
    expected = eager.play(script)
    assert_same_bits(graph.play(script), expected)
    assert _recordings(graph) == [3]
    assert_same_bits(_on_cuda(tiny(name, dtype), CUTS[-1], dtype=dtype).play(script), expected)


@pytest.mark.parametrize("name", KINDS)
def test_random_rounds_of_many_streams_split_as_whole(tiny: Callable[..., Path], name: str) -> None:
    settings = {"context": 300, "rows_max": 96, "streams_max": 4}
    limits = make_stage(tiny(name), 0, 1, device="cuda", **settings)._settings
    script = random_script(3, 255, limits, 30)
    expected = _on_cuda(tiny(name), **settings).play(script)
    assert_same_bits(_on_cuda(tiny(name), [2, 5], **settings).play(script), expected)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("back", [1, 7, 16])
def test_a_cut_behind_graphs_equals_a_run_that_stopped_there(
    tiny: Callable[..., Path], name: str, back: int
) -> None:
    tails = []
    for before, after in scripts_of_a_cut(back):
        pipeline = _on_cuda(tiny(name))
        pipeline.play(before)
        tails.append(pipeline.play(after))
    assert_same_bits(*tails)


@pytest.mark.parametrize("name", KINDS)
def test_a_graph_sees_nothing_of_rows_that_were_no_numbers(
    tiny: Callable[..., Path], name: str
) -> None:
    used, fresh = _on_cuda(tiny(name), [4]), _on_cuda(tiny(name), [4])
    follower = used.engines[1]
    rows = rows_buffer(20 * row_bytes(follower.describe()))
    rows[...] = 0xFF
    follower.run(RoundPlan.of(Entry(9, OPEN, 0, 20)), rows, rows)
    follower.run(RoundPlan.of(Entry(9, CLOSE)), rows_buffer(0), rows_buffer(0))
    script = in_chunks(token_ids(count=6), [3, 1, 1, 1])
    assert_same_bits(used.play(script), fresh.play(script))


@pytest.mark.parametrize("name", KINDS)
def test_warming_records_the_usual_shapes_and_leaves_nothing(
    tiny: Callable[..., Path], name: str
) -> None:
    warmed, fresh = _on_cuda(tiny(name)), _on_cuda(tiny(name))
    for engine in warmed.engines:
        engine.warm()
    assert _recordings(warmed) == [8]
    script = in_chunks(token_ids(count=40), [32, *[1] * 8])
    assert_same_bits(warmed.play(script), fresh.play(script))
    assert _recordings(warmed) == [8]


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_after_a_capture_that_failed_rounds_go_on_with_the_same_bits(
    tiny: Callable[..., Path], name: str
) -> None:
    script = in_chunks(token_ids(count=40), [32, *[1] * 8])
    broken = _on_cuda(tiny(name))
    runner = broken.engines[0]._loaded.runner
    record = runner._recorder.record

    def reads(work: Work) -> Work:
        """Read a value inside the capture, which CUDA does not allow."""
        return record(lambda: work() * float(work().sum()))

    runner._recorder.record = reads
    assert_same_bits(broken.play(script), _on_cuda(tiny(name)).play(script))
    assert runner._is_full
    assert not runner._shapes
