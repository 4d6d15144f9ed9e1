"""Batch-invariant mode: a stream has the same bits alone, in any chunks, and beside any neighbours.

The mode's promise is that of the torch engine (tests/engines/torch/test_invariance.py).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CLOSE, CONTINUE, OPEN, EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry
from stagelink_conformance.reference import reference_logits
from stagelink_conformance.scripts import chunked, random_ids, step
from stagelink_numpy import NumpyEngine
from stagelink_numpy.tiny import TINY, make_tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNKS = (1, 2, 3, 7, 24, 64, 150)
ROWS = 150


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pipeline]:
    """Return a function that makes one or two stages of a tiny family in the mode."""
    folders: dict[str, Path] = {}

    def make(family: str, *cuts: int, streams: int = 4) -> Pipeline:
        if family not in folders:
            folders[family] = make_tiny(tmp_path_factory.mktemp("tiny") / family, family)
        borders = [0, *cuts, 8]
        engines = []
        for first, end in itertools.pairwise(borders):
            checkpoint = open_checkpoint(folders[family])
            engine = NumpyEngine(
                checkpoint,
                read_family(checkpoint.config),
                first,
                end,
                lead=first == 0,
                settings=EngineSettings(
                    context=200, rows_max=160, streams_max=streams, batch_invariant=True
                ),
            )
            engine.load()
            engines.append(engine)
        return Pipeline(engines)

    return make


@pytest.mark.parametrize("family", sorted(TINY))
def test_every_chunking_gives_the_same_bits(stages: Callable[..., Pipeline], family: str) -> None:
    pipeline = stages(family)
    assert pipeline.engines[0].describe().batch_invariant
    ids = random_ids(1, ROWS, 255)
    seen = set()
    for stream, chunk in enumerate(CHUNKS, start=1):
        outcomes = pipeline.play(chunked(stream, ids, chunk))
        seen.add(np.concatenate([one.logits for one in outcomes]).tobytes())
        pipeline.play([step(Entry(stream, CLOSE), ids=[])])
    assert len(seen) == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_streams_in_random_mixed_rounds_equal_each_alone(
    stages: Callable[..., Pipeline], seed: int
) -> None:
    ids = {stream: random_ids(10 * seed + stream, 90 + 15 * stream, 255) for stream in range(1, 5)}
    rng, mixed = np.random.default_rng(seed), stages("qwen3", 3)
    held = dict.fromkeys(ids, 0)
    rows: dict[int, list[np.ndarray]] = {stream: [] for stream in ids}
    while any(held[stream] < len(own) for stream, own in ids.items()):
        entries, taken = [], []
        for stream, own in ids.items():
            count = min(int(rng.choice([0, 1, 1, 3, 9, 33])), len(own) - held[stream])
            if count:
                op = CONTINUE if held[stream] else OPEN
                entries.append(Entry(stream, op, held[stream], count))
                taken += own[held[stream] : held[stream] + count]
                held[stream] += count
        if entries:
            one = step(*entries, ids=taken)
            logits, begin = mixed.round(one.plan, one.token_ids).logits, 0
            for entry in entries:
                rows[entry.stream].append(logits[begin : begin + entry.rows])
                begin += entry.rows
    alone = stages("qwen3")
    for stream, own in ids.items():
        expected = alone.play(chunked(stream, own, len(own)))[0].logits
        assert np.concatenate(rows[stream]).tobytes() == expected.tobytes()


def test_the_mode_is_close_to_the_float64_reference(stages: Callable[..., Pipeline]) -> None:
    pipeline, ids = stages("llama"), random_ids(3, 40, 255)
    logits = pipeline.play(chunked(1, ids, 40))[0].logits
    expected = reference_logits(pipeline.engines[0]._checkpoint, ids)
    assert np.abs(logits - expected).max() <= 1e-4


def test_what_a_slot_held_leaves_no_trace(stages: Callable[..., Pipeline]) -> None:
    pipeline, ids = stages("llama", streams=1), random_ids(4, 20, 255)
    expected = pipeline.play(chunked(1, ids, 20))[0]
    pipeline.play([step(Entry(1, CLOSE), ids=[])])
    _, cache = pipeline.engines[0]._loaded
    cache.keys[...], cache.values[...] = np.inf, np.nan
    assert pipeline.play(chunked(2, ids, 20))[0].same_bits(expected)
