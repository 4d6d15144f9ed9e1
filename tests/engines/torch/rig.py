"""What the torch engine's tests share: tiny checkpoints, stages in one process, chunkings.

It compares nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import chunked, random_ids

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from stagelink_conformance.pipeline import Outcome
    from stagelink_conformance.scripts import Script
    from stagelink_torch import TorchEngine

LAYERS = 8
ROWS = 96
CUTS = ([4], [1, 2, 6], [3, 7])
# Ninety-six rows pass the tiny models' window of 16 several times.
CHUNKINGS = {
    "whole": [96],
    "quarters": [24] * 4,
    "ragged": [33, 7, 1, 5, 50],
    "prompt_then_rows": [80, *[1] * 16],
    "rows": [1] * 96,
}


def make_stage(folder: Path | str, first: int, end: int, **settings: object) -> TorchEngine:
    """Load layers ``first..end``; those from layer 0 are the lead's."""
    from stagelink_torch import TorchEngine

    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    chosen = {"context": 256, "rows_max": 128, "streams_max": 4, "threads": 1, **settings}
    limits = EngineSettings(**chosen)  # type: ignore[arg-type]
    engine = TorchEngine(checkpoint, family, first, end, lead=first == 0, settings=limits)
    engine.load()
    return engine


def make_pipeline(
    folder: Path | str, cuts: Sequence[int] = (), layers: int = LAYERS, **settings: object
) -> Pipeline:
    """Chain loaded stages that meet at ``cuts``."""
    borders = itertools.pairwise([0, *cuts, layers])
    return Pipeline([make_stage(folder, first, end, **settings) for first, end in borders])


def token_ids(seed: int = 1, count: int = ROWS) -> list[int]:
    """Draw ids of the tiny vocabulary, without its end of text."""
    return random_ids(seed, count, 255)


def in_chunks(ids: Sequence[int], chunks: Sequence[int], stream: int = 1, at: int = 0) -> Script:
    """Put ``ids`` into a stream in rounds of ``chunks`` rows."""
    script: Script = []
    for count in chunks:
        script += chunked(stream, ids[:count], count, at=at)
        ids, at = ids[count:], at + count
    return script


def logits_of(outcomes: Sequence[Outcome]) -> npt.NDArray[np.float32]:
    """Return the logits of all rounds, one row after the other."""
    return np.concatenate([one.logits for one in outcomes])
