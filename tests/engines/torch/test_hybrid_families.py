"""DeltaNet and latent-attention families: split and whole, cuts back, states, transformers.

Families with plain attention are in test_families.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

from tests.engines.torch.rig import (
    CHUNKINGS,
    CUTS,
    in_chunks,
    logits_of,
    make_pipeline,
    token_ids,
)

from stagelink.engine import CONTINUE, EngineError
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, step
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagelink_conformance.pipeline import Outcome, Pipeline

LATENT = ("deepseek_v2", "deepseek_v3")
DELTA = ("qwen3_5_text", "qwen3_next", "qwen3_5_moe")
FAMILIES = (*LATENT, *DELTA)
# Every fourth layer attends: [3, 4] leaves a stage with linear layers only, and one with none.
BY_KIND = [3, 4]
PROMPT, VERIFY = 40, 8
TOLERANCE = 1e-4


def test_a_stage_with_layers_of_one_kind_has_the_bits_of_the_whole(
    tiny: Callable[..., Path],
) -> None:
    script = in_chunks(token_ids(), CHUNKINGS["ragged"])
    expected = make_pipeline(tiny("qwen3_next")).play(script)
    assert_same_bits(make_pipeline(tiny("qwen3_next"), BY_KIND).play(script), expected)


@pytest.mark.parametrize("chunks", CHUNKINGS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_split_has_the_bits_of_the_whole(
    tiny: Callable[..., Path], name: str, chunks: str
) -> None:
    script = in_chunks(token_ids(), CHUNKINGS[chunks])
    expected = make_pipeline(tiny(name)).play(script)
    for cuts in CUTS:
        assert_same_bits(make_pipeline(tiny(name), cuts).play(script), expected)


@pytest.mark.parametrize("name", ["qwen3_next", "deepseek_v3"])
def test_a_split_has_the_bits_of_the_whole_in_bfloat16(
    tiny: Callable[..., Path], name: str
) -> None:
    script = in_chunks(token_ids(), CHUNKINGS["ragged"])
    folder = tiny(name, "bfloat16")
    expected = make_pipeline(folder, dtype="bfloat16").play(script)
    got = make_pipeline(folder, [1, 2, 6], dtype="bfloat16").play(script)
    assert_same_bits(got, expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_two_hundred_logits_are_close_to_those_of_transformers(
    tiny: Callable[..., Path], name: str
) -> None:
    from stagelink_conformance.whole import whole_logits

    ids = token_ids(count=200)
    pipeline = make_pipeline(tiny(name), rows_max=200)
    got = logits_of(pipeline.play(in_chunks(ids, [200])))
    expected = whole_logits(tiny(name), ids)
    assert np.abs(got - expected).max() <= TOLERANCE
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))


def verified(
    pipeline: Pipeline, ids: Sequence[int], cuts: Sequence[int] = (), count: int = VERIFY
) -> None:
    """Prompt a stream and run the first ``count`` rows of a verify, its batches meeting at cuts."""
    pipeline.play(chunked(1, ids[:PROMPT], 33))
    rows = ids[PROMPT : PROMPT + count]
    pipeline.play([step(Entry(1, CONTINUE, PROMPT, count), ids=rows, cuts=cuts)])


def kept(pipeline: Pipeline, position: int) -> None:
    for engine in pipeline.engines:
        engine.keep(1, position)


def saved(pipeline: Pipeline) -> list[bytes]:
    return [engine.save(1) for engine in pipeline.engines]


def after(pipeline: Pipeline, position: int) -> list[Outcome]:
    ids = token_ids(seed=9, count=8)
    return pipeline.play(
        chunked(1, ids[:2], 1, at=position) + chunked(1, ids[2:], 6, at=position + 2)
    )


@pytest.mark.parametrize("kept_rows", [1, 5, 7])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_verify_cut_back_equals_a_run_that_stopped_there(
    tiny: Callable[..., Path], name: str, kept_rows: int
) -> None:
    ids = token_ids(count=PROMPT + VERIFY)
    at = PROMPT + kept_rows
    # A batch that ends where the cut will be: the kept rows have the composition of a run that
    # stopped there, and then every byte of the state and of what follows is equal.
    pipeline, stopped = make_pipeline(tiny(name), [4]), make_pipeline(tiny(name), [4])
    verified(pipeline, ids, cuts=[kept_rows])
    kept(pipeline, at)
    verified(stopped, ids, count=kept_rows)
    assert saved(pipeline) == saved(stopped)
    assert_same_bits(after(pipeline, at), after(stopped, at))


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_were_cut_off_leave_nothing(tiny: Callable[..., Path], name: str) -> None:
    ids = token_ids(count=PROMPT + VERIFY)
    others = [*ids[: PROMPT + 3], *token_ids(seed=5, count=VERIFY - 3)]
    pipelines = [make_pipeline(tiny(name)), make_pipeline(tiny(name))]
    for pipeline, rows in zip(pipelines, (ids, others), strict=True):
        verified(pipeline, rows, cuts=[3])
        kept(pipeline, PROMPT + 3)
    assert saved(pipelines[0]) == saved(pipelines[1])


def test_a_cut_inside_a_long_chunk_equals_a_run_that_stopped_there(
    tiny: Callable[..., Path],
) -> None:
    ids = token_ids(count=90)
    # Only linear layers: attention rounds the last rows of a chunk by the chunk's length.
    pipeline, stopped = (make_pipeline(tiny("qwen3_5_text"), [3]) for _ in range(2))
    pipeline.play(chunked(1, ids, 90))
    kept(pipeline, 70)
    stopped.play(chunked(1, ids[:70], 70))
    assert saved(pipeline)[0] == saved(stopped)[0]


def test_a_cut_that_reaches_too_far_is_refused_and_changes_nothing(
    tiny: Callable[..., Path],
) -> None:
    pipeline, plain = (make_pipeline(tiny("qwen3_next"), BY_KIND) for _ in range(2))
    for one in (pipeline, plain):
        one.play(chunked(1, token_ids(), 24))
    linear, attends = pipeline.engines[0], pipeline.engines[1]
    with pytest.raises(EngineError) as caught:
        linear.keep(1, 30)
    assert caught.value.reason == "history_gone"
    attends.keep(1, 96)
    assert_same_bits(after(pipeline, 96), after(plain, 96))


def test_a_stream_can_always_begin_again(tiny: Callable[..., Path]) -> None:
    pipeline, plain = (make_pipeline(tiny("qwen3_next"), [4]) for _ in range(2))
    pipeline.play(chunked(1, token_ids(), 24))
    kept(pipeline, 0)
    ids = token_ids(seed=3, count=30)
    again = pipeline.play([step(Entry(1, CONTINUE, 0, 30), ids=ids)])
    assert_same_bits(again, plain.play(chunked(1, ids, 30)))


@pytest.mark.parametrize("name", ["qwen3_next", "deepseek_v3"])
def test_a_restored_stream_goes_on_with_the_same_bits(tiny: Callable[..., Path], name: str) -> None:
    pipeline, fresh = make_pipeline(tiny(name), [4]), make_pipeline(tiny(name), [4])
    verified(pipeline, token_ids())
    for engine, state in zip(fresh.engines, saved(pipeline), strict=True):
        engine.restore(1, state)
    at = PROMPT + VERIFY
    assert_same_bits(after(fresh, at), after(pipeline, at))


@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_change_no_bit_in_batch_invariant_mode(tiny: Callable[..., Path], name: str) -> None:
    pipeline = make_pipeline(tiny(name), batch_invariant=True)
    ids = token_ids()
    played = [
        logits_of(pipeline.play(in_chunks(ids, CHUNKINGS[chunks], stream)))
        for stream, chunks in enumerate(("whole", "ragged", "prompt_then_rows"), start=1)
    ]
    assert played[0].tobytes() == played[1].tobytes() == played[2].tobytes()
