"""SmolLM2's greedy ids on every engine, in three stages, are those of an independent model.

The numpy engine's own tests are in test_smollm2_greedy.py. All prompts to their end are marked
long; `./check` takes one prompt and the first of its ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.exactness.engine_grid import ENGINES, open_stages

from stagelink.engine import CONTINUE
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink_conformance.pipeline import Pipeline

CUTS = (10, 20)
FIRST_IDS = 12


@pytest.fixture(scope="module", params=[name for name in ENGINES if name != "numpy"])
def pipeline(request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    """Three stages of SmolLM2 on one engine."""
    stages = open_stages(request.param, "smollm2")
    yield stages.split(*CUTS)
    stages.close()


def _assert_greedy(pipeline: Pipeline, case: dict[str, Any], stream: int, count: int) -> None:
    """Generate ``count`` ids and compare each; every choice of the reference is decided."""
    prompt = list(case["prompt_ids"])
    logits = pipeline.play(chunked(stream, prompt, len(prompt)))[-1].logits[-1]
    got = [int(logits.argmax())]
    while len(got) < count:
        row = step(Entry(stream, CONTINUE, len(prompt) + len(got) - 1, 1), ids=got[-1:])
        got.append(int(pipeline.round(row.plan, row.token_ids).logits[-1].argmax()))
    assert got == case["greedy_ids"][:count]


@pytest.mark.slow
def test_the_first_ids_of_a_prompt_are_the_references(
    pipeline: Pipeline, greedy: list[dict[str, Any]]
) -> None:
    _assert_greedy(pipeline, greedy[0], 1, FIRST_IDS)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("prompt", range(1, 5))
def test_all_ids_of_the_other_prompts_are_the_references(
    pipeline: Pipeline, greedy: list[dict[str, Any]], prompt: int
) -> None:
    case = greedy[prompt]
    _assert_greedy(pipeline, case, prompt + 1, len(case["greedy_ids"]))
