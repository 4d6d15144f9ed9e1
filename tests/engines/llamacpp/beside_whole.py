"""A file's stages beside the whole file in one llama.cpp context: the same bytes in every round.

It makes no files and chooses no cuts.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
from tests.engines.llamacpp.native_chain import (
    BATCH,
    CONTEXT,
    STREAMS,
    Model,
    read_source,
    rule_for,
    script,
)

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CONTINUE, OPEN, EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import step
from stagelink_llamacpp import LlamaCppEngine
from stagelink_llamacpp.context import KV_TYPES
from stagelink_llamacpp.rounds import WINDOW_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.engines.llamacpp.native_chain import Place

    from stagelink_conformance.plans import RoundPlan

_SETTINGS = EngineSettings(
    context=CONTEXT, streams_max=STREAMS, rows_max=BATCH, chunk_rows=32, threads=1
)
# At most the rows of one call of the head: more are another composition there.
_CHUNKS, _STEPS = (30, 7), 3


def make_stage(path: Path, first: int, end: int, *, kv: str = "auto") -> LlamaCppEngine:
    """Make a stage that is not loaded; the file is opened as for this engine alone."""
    checkpoint = open_checkpoint(path, floats=False)
    family = read_family(checkpoint.config, str(path), checkpoint.tensors)
    settings = dataclasses.replace(_SETTINGS, kv_dtype=kv)
    return LlamaCppEngine(checkpoint, family, first, end, lead=first == 0, settings=settings)


def load_stages(path: Path, cuts: Sequence[int], *, kv: str = "auto") -> list[LlamaCppEngine]:
    """Load a stage for every range between the cuts."""
    bounds = itertools.pairwise((0, *cuts, rule_for(read_source(path)).layers))
    stages = [make_stage(path, *one, kv=kv) for one in bounds]
    for stage in stages:
        stage.load()
    return stages


def assert_equal(
    path: Path,
    cuts: Sequence[int],
    streams: int = 2,
    *,
    moved: float = 0.05,
    chunks: Sequence[int] = _CHUNKS,
    kv: str = "float16",
) -> None:
    """Compare the last layer's rows and the logits of prompts in chunks, and of decode steps.

    ``moved`` is the least standard deviation of the logits: equal ones must not be so by being 0.
    """
    rule = rule_for(read_source(path))
    last = f"l_out-{rule.layers - 1}"
    pipeline = Pipeline(load_stages(path, cuts, kv=kv))
    try:
        with Model(path, [last], kv=KV_TYPES[kv]) as whole:
            for places, tokens in script(streams, chunks, _STEPS):
                expected = _run_whole(whole, places, tokens, recurrent=rule.recurrent)
                got = pipeline.round(*_round(places, tokens))
                assert got.rows.tobytes() == expected[last].tobytes(), f"rows, cuts {cuts}"
                if "logits" in expected:
                    logits = expected["logits"].tobytes()
                    assert got.logits.tobytes() == logits, f"logits, cuts {cuts}"
                assert got.logits.std() > moved
    finally:
        pipeline.close()


def _run_whole(
    whole: Model, places: Sequence[Place], tokens: Sequence[int], *, recurrent: bool
) -> dict[str, np.ndarray]:
    """Run a batch in the composition of the engine; streams have one row each, or there is one."""
    is_alone = len({stream for stream, _ in places}) == 1
    if not recurrent or not is_alone or not 1 < len(places) <= WINDOW_ROWS:
        return whole.run(places, tokens=tokens)
    steps = [whole.run([places[at]], tokens=[tokens[at]]) for at in range(len(places))]
    # Their logits are those of single rows; the head takes the rows of a round together.
    taken = steps[0].keys() - {"logits"}
    return {name: np.concatenate([one[name] for one in steps]) for name in taken}


def _round(places: Sequence[Place], tokens: Sequence[int]) -> tuple[RoundPlan, np.ndarray]:
    entries = []
    for stream, group in itertools.groupby(places, key=lambda place: place[0]):
        rows = list(group)
        first = rows[0][1]
        entries.append(Entry(stream + 1, CONTINUE if first else OPEN, first, len(rows)))
    one = step(*entries, ids=tokens)
    return one.plan, np.asarray(one.token_ids)
