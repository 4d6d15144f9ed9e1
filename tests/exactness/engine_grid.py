"""The grid of the tests over families and engines: which, cut where, in which chunks.

It compares nothing.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.engine import ConfigError, EngineSettings
from stagelink.engine_registry import find_engine
from stagelink_conformance.families import FAMILIES
from stagelink_conformance.scripts import in_chunks, random_ids
from stagelink_conformance.stages import Stages

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline
    from stagelink_conformance.scripts import Script

NAMES = tuple(FAMILIES)
# An engine, and the library that it cannot do without.
ENGINES = {"numpy": "numpy", "torch": "torch", "transformers": "transformers", "mlx": "mlx.core"}
CUTS = ((4,), (1, 2, 6), (3, 7))
# Ninety-six rows pass the tiny models' windows of 16 several times.
CHUNKINGS = {
    "whole": (96,),
    "quarters": (24,) * 4,
    "ragged": (33, 7, 1, 5, 50),
    "prompt_then_rows": (80, *(1,) * 16),
    "rows": (1,) * 96,
}
SETTINGS = EngineSettings(context=256, streams_max=5, rows_max=200, chunk_rows=64, threads=1)


def open_stages(engine: str, model: Path | str, dtype: str = "float32") -> Stages:
    """Return what makes stages of a model on an engine; skip the test where one lacks the other."""
    library = ENGINES[engine]
    pytest.importorskip(library, reason=f"the {engine} engine needs {library}")
    try:
        factory: Any = find_engine(engine)
        settings = EngineSettings(
            dtype=dtype,
            context=SETTINGS.context,
            streams_max=SETTINGS.streams_max,
            rows_max=SETTINGS.rows_max,
            chunk_rows=SETTINGS.chunk_rows,
            # Each engine that has no say over its threads is run with one by the environment.
            threads=1 if engine in ("torch", "transformers") else None,
        )
        return Stages(factory, model, settings)
    except ConfigError as error:
        lacking = ("engine_family", "engine_unknown", "engine_import")
        if error.reason in lacking or (error.reason == "engine_dtype" and dtype != "float32"):
            pytest.skip(str(error))
        raise


def drawn(family: str, engine: str) -> tuple[tuple[int, ...], str]:
    """Choose one cut and one chunking by the names: the same in every run, spread over the grid."""
    rng = random.Random(f"{family} {engine}")
    return rng.choice(CUTS), rng.choice(list(CHUNKINGS))


def script_of(chunking: str, stream: int = 1) -> Script:
    """Return the rounds of one chunking, with its stream's own ids."""
    chunks = CHUNKINGS[chunking]
    return in_chunks(random_ids(100 + stream, sum(chunks), 255), chunks, stream)


def play_and_close(pipeline: Pipeline, script: Script) -> list[Any]:
    """Run a script through stages that are not needed after it."""
    outcomes = pipeline.play(script)
    pipeline.close()
    return outcomes
