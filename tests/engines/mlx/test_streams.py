"""States of every family: cut back after a verify, saved and restored, and how far a cut reaches.

What the conformance suite promises on the plain families is not repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx.rig import (
    FAMILIES,
    WITH_RECURRENCE,
    in_chunks,
    make_pipeline,
    token_ids,
)

from stagelink.engine import CONTINUE, EngineError
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import step
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CUTS = [1, 2, 6]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kept", [1, 5])
def test_a_cut_inside_a_verify_equals_a_run_that_stopped_there(
    tiny: Callable[..., Path], name: str, kept: int
) -> None:
    ids, drafts, after = token_ids(1, 40), token_ids(2, 8), token_ids(3, 4)
    cut, plain = make_pipeline(tiny(name), CUTS), make_pipeline(tiny(name), CUTS)
    cut.play([*in_chunks(ids, [40]), *in_chunks(drafts, [8], at=40)])
    plain.play([*in_chunks(ids, [40]), *in_chunks(drafts[:kept], [kept], at=40)])
    for engine in cut.engines:
        engine.keep(1, 40 + kept)
    tail = in_chunks(after, [1, 3], at=40 + kept)
    for got, expected in zip(cut.play(tail), plain.play(tail), strict=True):
        assert abs(got.logits - expected.logits).max() <= 2e-5


@pytest.mark.parametrize("name", FAMILIES)
def test_a_cut_to_the_beginning_of_a_verify_has_the_bits_of_never_having_drafted(
    tiny: Callable[..., Path], name: str
) -> None:
    ids, after = token_ids(1, 40), token_ids(3, 4)
    cut, plain = make_pipeline(tiny(name), [3, 7]), make_pipeline(tiny(name), [3, 7])
    cut.play([*in_chunks(ids, [40]), *in_chunks(token_ids(2, 8), [8], at=40)])
    plain.play(in_chunks(ids, [40]))
    tail = in_chunks(after, [1, 3], at=40)
    assert_same_bits(cut.play(tail), plain.play(tail))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_restored_state_goes_on_with_the_same_bits(tiny: Callable[..., Path], name: str) -> None:
    stages, tail = make_pipeline(tiny(name), [3, 7]), in_chunks(token_ids(3, 4), [1, 3], at=40)
    stages.play(in_chunks(token_ids(1, 40), [33, 7]))
    states = [engine.save(1) for engine in stages.engines]
    fresh = make_pipeline(tiny(name), [3, 7])
    for engine, state in zip(fresh.engines, states, strict=True):
        engine.restore(1, state)
    assert_same_bits(fresh.play(tail), stages.play(tail))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3"])
def test_memory_that_has_grown_shows_in_no_bit(tiny: Callable[..., Path], name: str) -> None:
    ids = token_ids(1, 300)
    grown, plain = (make_pipeline(tiny(name), [4], context=400) for _ in range(2))
    grown.play(in_chunks(ids, [120, 120, 60]))
    plain.play(in_chunks(ids[:240], [120, 120]))
    tail = in_chunks(token_ids(3, 4), [1, 3], at=240)
    assert_same_bits(grown.play(tail), plain.play(tail))


@pytest.mark.parametrize("name", WITH_RECURRENCE)
def test_a_recurrent_state_goes_back_over_many_rounds(tiny: Callable[..., Path], name: str) -> None:
    ids = token_ids(1, 90)
    stages, plain = make_pipeline(tiny(name), [3]), make_pipeline(tiny(name), [3])
    stages.play(in_chunks(ids, [20, *[1] * 70]))
    plain.play(in_chunks(ids[:30], [20, *[1] * 10]))
    tail = in_chunks(token_ids(3, 4), [1, 3], at=30)
    assert_same_bits(stages.play(tail), plain.play(tail))


def test_cuts_of_a_recurrent_state_can_follow_each_other(tiny: Callable[..., Path]) -> None:
    ids = token_ids(1, 60)
    stages, plain = make_pipeline(tiny("qwen3_5_text"), [3]), make_pipeline(tiny("qwen3_5_text"))
    stages.play(in_chunks(ids, [50, 10]))
    for position in (55, 52, 50):
        for engine in stages.engines:
            engine.keep(1, position)
    plain.play(in_chunks(ids[:50], [50]))
    tail = in_chunks(token_ids(3, 4), [4], at=50)
    assert_same_bits(stages.play(tail), plain.play(tail))


def test_a_cut_beyond_the_reach_of_a_recurrent_state_is_refused_and_changes_nothing(
    tiny: Callable[..., Path],
) -> None:
    # The second stage has no recurrent layer, and must refuse as the others do.
    stages = make_pipeline(tiny("qwen3_5_text"), [3, 4])
    plain = make_pipeline(tiny("qwen3_5_text"))
    for one in (stages, plain):
        one.play(in_chunks(token_ids(1, 240), [80, 80, 80]))
    for engine in stages.engines:
        with pytest.raises(EngineError) as caught:
            engine.keep(1, 20)
        assert caught.value.reason == "history_gone"
    tail = in_chunks(token_ids(3, 4), [4], at=240)
    assert_same_bits(stages.play(tail), plain.play(tail))


def test_any_stream_can_begin_again_at_position_0(tiny: Callable[..., Path]) -> None:
    again, fresh = make_pipeline(tiny("qwen3_5_text"), [4]), make_pipeline(tiny("qwen3_5_text"))
    again.play(in_chunks(token_ids(1, 240), [80, 80, 80]))
    for engine in again.engines:
        engine.keep(1, 0)
    ids = token_ids(2, 30)
    got = again.play([step(Entry(1, CONTINUE, 0, 30), ids=ids)])
    assert_same_bits(got, fresh.play(in_chunks(ids, [30])))
