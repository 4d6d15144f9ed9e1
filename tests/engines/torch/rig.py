"""What the torch engine's tests share: tiny checkpoints, stages in one process, chunkings.

It compares nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.engines.rig import CUTS, LAYERS, ROWS, chain, logits_of, token_ids

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.scripts import in_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline
    from stagelink_torch import TorchEngine

__all__ = [
    "CHUNKINGS",
    "CUTS",
    "LAYERS",
    "ROWS",
    "in_chunks",
    "logits_of",
    "make_pipeline",
    "make_stage",
    "token_ids",
]
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

    def stage(first: int, end: int) -> TorchEngine:
        return make_stage(folder, first, end, **settings)

    return chain(stage, cuts, layers)
