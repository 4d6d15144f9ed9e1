"""Cutting back, saving and restoring, for each kind of state that llama.cpp keeps.

A latent KV, a sliding window, and recurrent layers, whose state cannot be cut and is taken before
each round. Plain KV is in the promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.engine import CLOSE, CONTINUE, OPEN, EngineError
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import chunked, random_ids, step
from stagelink_conformance.stages import assert_same_bits
from stagelink_llamacpp import LlamaCppEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline

    Make = Callable[[], Pipeline]

LAYERS, PROMPT = 8, 20
NAMES = ["deepseek2", "gemma3", "gpt-oss", "qwen35", "qwen3next"]
RECURRENT = ["qwen35", "qwen3next"]
_IDS = random_ids(3, 40, 256)


@pytest.fixture
def made(tmp_path: Path, split: Callable[..., Pipeline], request: pytest.FixtureRequest) -> Make:
    """Return a function that makes two stages of the file that a test names."""
    path = make_gguf(tmp_path, request.param, kind="Q8_0")
    return lambda: split(path, LAYERS, (4,))


def _go_on(pipeline: Pipeline, at: int) -> list:
    return pipeline.play(chunked(1, _IDS[30:33], 1, at=at))


def _drafted(made: Make) -> Pipeline:
    pipeline = made()
    pipeline.play([*chunked(1, _IDS[:PROMPT], PROMPT), *chunked(1, _IDS[20:28], 8, at=PROMPT)])
    return pipeline


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_dropping_every_draft_equals_never_having_drafted(made: Make) -> None:
    plain = made()
    plain.play(chunked(1, _IDS[:PROMPT], PROMPT))
    assert_same_bits(_go_on(_drafted(made), PROMPT), _go_on(plain, PROMPT))


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_keeping_three_of_eight_drafts_equals_having_drafted_three(made: Make) -> None:
    pipeline, plain = _drafted(made), made()
    for engine in pipeline.engines:
        engine.keep(1, PROMPT + 3)
    plain.play([*chunked(1, _IDS[:PROMPT], PROMPT), *chunked(1, _IDS[20:23], 3, at=PROMPT)])
    assert_same_bits(_go_on(pipeline, PROMPT + 3), _go_on(plain, PROMPT + 3))


@pytest.mark.parametrize("kept", range(9))
@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_stream_that_keeps_any_part_of_a_verify_equals_one_that_stopped_there(
    name: str, kind: str, kept: int, tmp_path: Path, split: Callable[..., Pipeline]
) -> None:
    path = make_gguf(tmp_path, name, kind=kind)
    pipeline, stopped, whole = (split(path, LAYERS, cuts) for cuts in ((4,), (4,), ()))
    prompt = chunked(1, _IDS[:PROMPT], PROMPT)
    for one in (pipeline, whole):
        one.play([*prompt, *chunked(1, _IDS[20:28], 8, at=PROMPT)])
        for engine in one.engines:
            engine.keep(1, PROMPT + kept)
    stopped.play([*prompt, *chunked(1, _IDS[20 : 20 + kept], 8, at=PROMPT)])
    for engine, other in zip(pipeline.engines, stopped.engines, strict=True):
        assert engine.save(1) == other.save(1)
    expected = _go_on(stopped, PROMPT + kept)
    assert_same_bits(_go_on(pipeline, PROMPT + kept), expected)
    assert_same_bits(_go_on(whole, PROMPT + kept), expected)


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_a_restored_stream_goes_on_with_the_same_bits_in_another_slot(made: Make) -> None:
    pipeline, fresh = _drafted(made), made()
    fresh.play(chunked(2, _IDS[:9], 9))
    for engine, other in zip(pipeline.engines, fresh.engines, strict=True):
        other.restore(1, engine.save(1))
    assert_same_bits(_go_on(fresh, PROMPT + 8), _go_on(pipeline, PROMPT + 8))


@pytest.mark.parametrize("made", RECURRENT, indirect=True)
def test_a_recurrent_state_is_not_cut_before_its_last_round_and_says_so(made: Make) -> None:
    pipeline, plain = _drafted(made), _drafted(made)
    bad = step(Entry(1, CONTINUE, PROMPT - 1, 1), ids=[5])
    with pytest.raises(EngineError) as caught:
        pipeline.round(bad.plan, bad.token_ids)
    assert caught.value.reason == "history_gone"
    assert_same_bits(_go_on(pipeline, PROMPT + 8), _go_on(plain, PROMPT + 8))


@pytest.mark.parametrize("made", RECURRENT, indirect=True)
def test_a_recurrent_stream_begins_again_from_nothing(made: Make) -> None:
    pipeline, plain = _drafted(made), made()
    for engine in pipeline.engines:
        engine.keep(1, 0)
    again = step(Entry(1, CONTINUE, 0, 6), ids=_IDS[:6])
    assert_same_bits(
        [pipeline.round(again.plan, again.token_ids)], plain.play(chunked(1, _IDS[:6], 6))
    )


@pytest.mark.parametrize("made", ["qwen3", "qwen35", "gemma3"], indirect=True)
@pytest.mark.parametrize("claimed", [PROMPT - 1, PROMPT + 1, 0])
def test_a_state_of_another_number_of_positions_is_refused_and_leaves_the_slot_free(
    made: Make, claimed: int
) -> None:
    pipeline, fresh = made(), made()
    pipeline.play(chunked(1, _IDS[:PROMPT], PROMPT))
    engine, other = pipeline.engines[0], fresh.engines[0]
    assert isinstance(engine, LlamaCppEngine)
    form = engine._state_format()
    _, body = form.open(engine.save(1))
    state = form.close(claimed or PROMPT, bytes(body) if claimed else b"")
    with pytest.raises(EngineError) as caught:
        other.restore(1, state)
    assert caught.value.reason == "state_damaged"
    assert_same_bits(
        fresh.play(chunked(1, _IDS[:PROMPT], PROMPT)),
        made().play(chunked(1, _IDS[:PROMPT], PROMPT)),
    )


def _run_no_numbers(engine: LlamaCppEngine, entry: Entry) -> None:
    """Run rows that are no numbers; all ones are none in any dtype."""
    rows = rows_buffer(entry.rows * row_bytes(engine.describe()))
    rows[...] = 0xFF
    engine.run(RoundPlan.of(entry), rows, rows)
    assert (rows.view("<f4") != rows.view("<f4")).all()


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_rows_that_are_no_numbers_leave_nothing_in_their_slot(made: Make) -> None:
    pipeline, plain = made(), made()
    follower = pipeline.engines[1]
    _run_no_numbers(follower, Entry(1, OPEN, 0, 6))
    follower.run(RoundPlan.of(Entry(1, CLOSE)), rows_buffer(0), rows_buffer(0))
    script = [*chunked(1, _IDS[:3], 3), *chunked(1, _IDS[3:5], 1, at=3)]
    assert_same_bits(pipeline.play(script), plain.play(script))


@pytest.mark.parametrize("made", NAMES, indirect=True)
def test_rows_that_are_no_numbers_are_gone_when_they_are_cut_off(made: Make) -> None:
    pipeline, plain = made(), made()
    follower = pipeline.engines[1]
    for one in (pipeline, plain):
        one.play(chunked(1, _IDS[:PROMPT], PROMPT))
    _run_no_numbers(follower, Entry(1, CONTINUE, PROMPT, 6))
    follower.keep(1, PROMPT)
    assert_same_bits(_go_on(pipeline, PROMPT), _go_on(plain, PROMPT))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_a_round_that_only_closes_a_stream_runs_on_a_table_of_every_type(
    kind: str, tmp_path: Path, split: Callable[..., Pipeline]
) -> None:
    pipeline = split(make_gguf(tmp_path, "llama", kind=kind), LAYERS, (4,))
    pipeline.play([*chunked(1, _IDS[:6], 6), step(Entry(1, CLOSE), ids=[])])
    with pytest.raises(EngineError) as caught:
        _go_on(pipeline, 6)
    assert caught.value.reason == "unknown_stream"
