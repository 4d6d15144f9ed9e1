"""How far back a stream can go, and that a position further back is refused without a change.

That going back gives the right bytes is one of the promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

from stagelink.engine import CONTINUE, EngineError
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, random_ids, step
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

IDS = random_ids(1, 120, 255)


def _whole(tiny: Callable[..., Any], make_stage: Callable[..., Any], family: str) -> Pipeline:
    stage = make_stage(tiny(family), 0, 8, rows_max=32)
    stage.load()
    return Pipeline([stage])


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_keys_and_values_go_back_to_any_position(
    tiny: Callable[..., Any], make_stage: Callable[..., Any], family: str
) -> None:
    pipeline = _whole(tiny, make_stage, family)
    pipeline.play(chunked(1, IDS[:96], 32))
    pipeline.engines[0].keep(1, 32)
    again = pipeline.play(chunked(1, IDS[32:64], 32, at=32))
    plain = _whole(tiny, make_stage, family).play(chunked(1, IDS[:64], 32))
    assert_same_bits(again, plain[1:])


@pytest.mark.parametrize("family", ["qwen3_5_text", "gemma3_text", "gpt_oss"])
def test_recurrent_layers_and_windows_go_back_by_the_last_rows_at_least(
    tiny: Callable[..., Any], make_stage: Callable[..., Any], family: str
) -> None:
    pipeline, plain = (_whole(tiny, make_stage, family) for _ in range(2))
    prompt = chunked(1, IDS[:64], 32)
    for one in (pipeline, plain):
        one.play(prompt + chunked(1, IDS[64:84], 1, at=64))
    pipeline.play(chunked(1, IDS[84:100], 1, at=84))
    pipeline.engines[0].keep(1, 84)
    tail = chunked(1, IDS[100:104], 1, at=84)
    assert_same_bits(pipeline.play(tail), plain.play(tail))


@pytest.mark.parametrize("family", ["qwen3_5_text", "gemma3_text"])
def test_a_position_of_long_ago_is_refused_and_changes_nothing(
    tiny: Callable[..., Any], make_stage: Callable[..., Any], family: str
) -> None:
    pipeline, plain = (_whole(tiny, make_stage, family) for _ in range(2))
    for one in (pipeline, plain):
        one.play(chunked(1, IDS[:96], 16))
    with pytest.raises(EngineError) as kept:
        pipeline.engines[0].keep(1, 3)
    late = step(Entry(1, CONTINUE, 3, 1), ids=[1])
    with pytest.raises(EngineError) as continued:
        pipeline.play([late])
    assert kept.value.reason == continued.value.reason == "history_gone"
    tail = chunked(1, IDS[100:104], 4, at=96)
    assert_same_bits(pipeline.play(tail), plain.play(tail))


def test_single_rows_do_not_pile_up_copies_of_the_state(
    tiny: Callable[..., Any], make_stage: Callable[..., Any]
) -> None:
    pipeline = _whole(tiny, make_stage, "qwen3_next")
    pipeline.play(chunked(1, IDS, 1))
    engine: Any = pipeline.engines[0]
    stream = engine._streams[1]
    assert len(stream._copies) <= 2
    assert len(stream._calls) <= 48
    assert 16 <= stream.position - stream.oldest <= 48
