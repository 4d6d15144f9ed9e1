"""Which model families the engines take whose libraries are slow to import.

It is what `stagelink inspect` tells without importing torch (5 s, and 20 s with transformers); an
engine itself may still refuse a model of such a family, for a field of its config.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from stagelink.checkpoint.families.gguf_family import GgufFamily
from stagelink.checkpoint.families.wide import WideFamily

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Family

# The keys of stagelink_torch.families.MODULES; a test compares them.
_TORCH = frozenset(
    (
        "llama",
        "qwen2",
        "qwen3",
        "smollm3",
        "mixtral",
        "qwen3_moe",
        "gemma3_text",
        "gpt_oss",
        "granite",
        "olmo2",
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "deepseek_v2",
        "deepseek_v3",
    )
)


def table_takes(engine: str, family: Family) -> bool | None:
    """Say whether an engine takes a family; ``None`` where only the engine itself can tell."""
    if engine == "torch":
        return family.model_type in _TORCH
    if engine != "transformers" or isinstance(family, WideFamily):
        return None
    if isinstance(family, GgufFamily):
        return False
    plain = not family.needs_token_ids and family.row_factor == family.planes == 1
    return plain and _library_has(family.model_type)


def _library_has(model_type: str) -> bool:
    """Say whether the installed transformers has modules of a type, by its folders alone."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        return False
    models = Path(found.submodule_search_locations[0]) / "models"
    return any((models / name).is_dir() for name in (model_type, model_type.removesuffix("_text")))
