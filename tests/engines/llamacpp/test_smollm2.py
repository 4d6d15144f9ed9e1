"""SmolLM2 Q4_1 in stages against the whole file in one llama.cpp context: every byte.

The whole file runs with the same settings and no engine of ours. Tiny files of every architecture
are in test_engine_architectures.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.native_chain import Model

from stagelink.engine import CLOSE, CONTINUE, OPEN, EngineSettings
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, open_streams, random_script, step
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink_conformance.pipeline import Pipeline

    Split = Callable[..., Pipeline]

LAYERS, VOCAB = 30, 49152
CUTS = [(10, 20), (15,), (6, 12, 18, 24), (1, 29)]
_LAST = f"l_out-{LAYERS - 1}"
_GREEDY = Path(__file__).parents[2] / "data/smollm2_greedy.json"


def _ids(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


@pytest.mark.parametrize("cuts", CUTS)
def test_stages_have_the_rows_and_logits_of_one_llama_cpp_context(
    smollm2: Path, split: Split, cuts: tuple[int, ...]
) -> None:
    pipeline, ids = split(smollm2, LAYERS, cuts), _ids(54)
    chunks = [(0, 32), (32, 18), *((at, 1) for at in range(50, 54))]
    with Model(smollm2, [_LAST]) as whole:
        for first, count in chunks:
            own = ids[first : first + count]
            op = CONTINUE if first else OPEN
            one = step(Entry(7, op, first, count), ids=own)
            got = pipeline.round(one.plan, one.token_ids)
            expected = whole.run([(0, first + at) for at in range(count)], tokens=own)
            assert got.rows.tobytes() == expected[_LAST].tobytes()
            assert got.logits.tobytes() == expected["logits"].tobytes()


def test_four_streams_a_round_have_the_bits_of_four_sequences_of_one_context(
    smollm2: Path, split: Split
) -> None:
    pipeline = split(smollm2, LAYERS, (10, 20))
    streams = range(4)
    with Model(smollm2, [_LAST]) as whole:
        for first, count in ((0, 8), (8, 1), (9, 1), (10, 1)):
            ids = _ids(4 * count, seed=first)
            op = CONTINUE if first else OPEN
            one = step(*(Entry(10 + n, op, first, count) for n in streams), ids=ids)
            got = pipeline.round(one.plan, one.token_ids)
            places = [(n, first + at) for n in streams for at in range(count)]
            expected = whole.run(places, tokens=ids)
            assert got.rows.tobytes() == expected[_LAST].tobytes()
            assert got.logits.tobytes() == expected["logits"].tobytes()


def test_three_stages_choose_the_tokens_that_whole_llama_cpp_chooses(
    smollm2: Path, split: Split
) -> None:
    prompts = json.loads(_GREEDY.read_text(encoding="utf-8"))["prompts"]
    ids = prompts[0]["prompt_ids"]
    pipeline = split(smollm2, LAYERS, (10, 20))
    outcome = pipeline.play(chunked(1, ids, len(ids)))[0]
    with Model(smollm2, []) as whole:
        expected = whole.run([(0, at) for at in range(len(ids))], tokens=ids)["logits"]
        for at in range(len(ids), len(ids) + 32):
            token, other = int(outcome.logits[-1].argmax()), int(expected[-1].argmax())
            assert token == other
            outcome = pipeline.play(chunked(1, [token], 1, at=at))[0]
            expected = whole.run([(0, at)], tokens=[other])["logits"]


def _random_streams(smollm2: Path, split: Split, rounds: int, seed: int) -> None:
    settings = EngineSettings(context=64, streams_max=4, rows_max=64)
    script = random_script(seed, VOCAB, settings, rounds)
    limits = {"context": 64, "streams_max": 4, "rows_max": 64}
    stages = split(smollm2, LAYERS, (10, 20), **limits)
    assert_same_bits(stages.play(script), split(smollm2, LAYERS, (), **limits).play(script))
    stages.play([step(Entry(stream, CLOSE), ids=[]) for stream in open_streams(script)])
    # Every slot is free again, and what was in it leaves no trace.
    again = stages.play([step(*(Entry(900 + n, OPEN, 0, 4) for n in range(4)), ids=_ids(16))])
    fresh = split(smollm2, LAYERS, (15,), **limits)
    expected = fresh.play([step(*(Entry(n, OPEN, 0, 4) for n in range(4)), ids=_ids(16))])
    assert_same_bits(again, expected)


def test_random_streams_have_the_bits_of_the_whole_and_give_their_slots_back(
    smollm2: Path, split: Split
) -> None:
    _random_streams(smollm2, split, 8, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_random_streams_have_the_bits_of_the_whole(smollm2: Path, split: Split) -> None:
    _random_streams(smollm2, split, 120, seed=2)
