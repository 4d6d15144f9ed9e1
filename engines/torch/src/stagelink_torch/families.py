"""Which family is in which file: the one table from ``model_type`` to a module.

It imports a family only when a checkpoint of it is opened.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from stagelink.engine import ConfigError

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

# A config of the text part alone names itself "..._text"; the layers are the same.
MODULES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
    "mixtral": "mixtral",
    "qwen3_moe": "qwen3_moe",
    "gemma3_text": "gemma3_text",
    "gpt_oss": "gpt_oss",
    "granite": "granite",
    "olmo2": "olmo2",
    "qwen3_next": "qwen3_next",
    "qwen3_5": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
}


class FamilyModule(Protocol):
    """What every family's file has; ``layer.py`` says what it may have beside it."""

    def make_layer(self, family: Family, index: int, weights: Weights, setup: Setup) -> Layer:
        """Make layer ``index`` of the model."""
        ...


def family_module(family: Family) -> FamilyModule:
    """Return the module of a family; ``ConfigError`` ``engine_family`` where there is none."""
    name = MODULES.get(family.model_type)
    if name is None:
        raise ConfigError(
            f"torch engine: expected a model of {', '.join(sorted(MODULES))}, got "
            f"{family.model_type!r}; {family.engine_advice}",
            reason="engine_family",
        )
    return cast("FamilyModule", importlib.import_module(f"stagelink_torch.{name}"))
