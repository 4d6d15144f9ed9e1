"""What the MLX engine's tests share: stages in one process, chunkings.

It compares nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.engines.rig import CUTS, LAYERS, ROWS, chain, logits_of, token_ids

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.scripts import in_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagelink.engine import Checkpoint
    from stagelink_conformance.pipeline import Pipeline
    from stagelink_mlx import MlxEngine

FAMILIES = (
    "llama",
    "llama3",
    "qwen2",
    "qwen3",
    "smollm3",
    "granite",
    "olmo2",
    "mixtral",
    "qwen3_moe",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "qwen3_5_text",
    "qwen3_next",
    "qwen3_5_moe",
)
# MLX's CPU build multiplies experts in float32 only.
WITH_EXPERTS = (
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "qwen3_next",
    "qwen3_5_moe",
)
WITH_RECURRENCE = ("qwen3_5_text", "qwen3_next", "qwen3_5_moe")
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
    "sevens": [*[7] * 13, 5],
    "ragged": [33, 7, 1, 5, 50],
    "prompt_then_rows": [88, *[1] * 8],
}


def make_engine(
    checkpoint: Checkpoint, first: int, end: int, *, lead: bool | None = None, **settings: Any
) -> MlxEngine:
    """Make a stage that is not loaded; layers from 0 on are the lead's."""
    from stagelink_mlx import MlxEngine

    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    chosen = {"context": 256, "rows_max": 128, "streams_max": 5, **settings}
    is_lead = first == 0 if lead is None else lead
    limits = EngineSettings(**chosen)
    return MlxEngine(checkpoint, family, first, end, lead=is_lead, settings=limits)


def make_stage(folder: Path | str, first: int, end: int, **settings: Any) -> MlxEngine:
    """Load a stage."""
    engine = make_engine(open_checkpoint(folder), first, end, **settings)
    engine.load()
    return engine


def make_pipeline(
    folder: Path | str, cuts: Sequence[int] = (), layers: int = LAYERS, **settings: Any
) -> Pipeline:
    """Chain loaded stages that meet at ``cuts``."""

    def stage(first: int, end: int) -> MlxEngine:
        return make_stage(folder, first, end, **settings)

    return chain(stage, cuts, layers)
