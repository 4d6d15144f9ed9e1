"""SmolLM2's greedy ids equal those of an independent implementation, whole and split.

tests/data/smollm2_greedy.json was made with transformers in float32; it names its versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink.engine import CONTINUE
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Model
    from stagelink_conformance.pipeline import Pipeline

# Two float32 implementations differ by at most 1e-4 in a logit (docs/exactness.md), so a choice is
# decided where the two best logits are further apart than twice that; the rest is margin.
DECIDED_GAP = 1e-3


def _assert_ids(got: list[int], case: dict[str, Any]) -> None:
    """Compare up to the first choice that the reference itself could not call decided."""
    undecided = [at for at, gap in enumerate(case["top2_gap"]) if gap <= DECIDED_GAP]
    end = undecided[0] if undecided else len(case["greedy_ids"])
    assert got[:end] == case["greedy_ids"][:end]


def test_every_choice_of_the_reference_is_decided(greedy: list[dict[str, Any]]) -> None:
    assert min(min(case["top2_gap"]) for case in greedy) > DECIDED_GAP


@pytest.mark.parametrize("prompt", range(5))
def test_the_whole_model_gives_the_reference_ids_of_one_stream(
    whole: Pipeline, greedy: list[dict[str, Any]], prompt: int
) -> None:
    case = greedy[prompt]
    ids = list(case["prompt_ids"])
    logits = whole.play(chunked(prompt, ids, len(ids)))[-1].logits[-1]
    got: list[int] = []
    for gap in case["top2_gap"]:
        best = np.sort(logits)[-2:]
        assert abs(float(best[1] - best[0]) - gap) < DECIDED_GAP / 5
        got.append(int(logits.argmax()))
        row = step(Entry(prompt, CONTINUE, len(ids) + len(got) - 1, 1), ids=got[-1:])
        logits = whole.round(row.plan, row.token_ids).logits[-1]
    _assert_ids(got, case)


@pytest.fixture(scope="module")
def whole(smollm2: Model) -> Iterator[Pipeline]:
    pipeline = smollm2.split()
    yield pipeline
    pipeline.close()


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(15,), (10, 20), (6, 12, 18, 24)], ids=["2", "3", "5"])
def test_a_split_gives_the_reference_ids_of_all_prompts_in_one_batch(
    smollm2: Model, greedy: list[dict[str, Any]], cuts: tuple[int, ...]
) -> None:
    pipeline = smollm2.split(cuts)
    chosen = [[_first(pipeline, stream, case)] for stream, case in enumerate(greedy, start=1)]
    for done in range(1, len(greedy[0]["greedy_ids"])):
        entries = [
            Entry(stream, CONTINUE, len(case["prompt_ids"]) + done - 1, 1)
            for stream, case in enumerate(greedy, start=1)
        ]
        row = step(*entries, ids=[ids[-1] for ids in chosen])
        logits = pipeline.round(row.plan, row.token_ids).logits
        for ids, one in zip(chosen, logits, strict=True):
            ids.append(int(one.argmax()))
    for ids, case in zip(chosen, greedy, strict=True):
        _assert_ids(ids, case)
    pipeline.close()


def _first(pipeline: Pipeline, stream: int, case: dict[str, Any]) -> int:
    """Run a prompt in chunks of 16 rows and choose the first id."""
    return int(pipeline.play(chunked(stream, case["prompt_ids"], 16))[-1].logits[-1].argmax())
