"""Variants of configs for the MLX engine: torch's, and those that only MLX's layers can miss.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.torch.variants import VARIANTS as _SHARED

_HEAD: dict[str, Any] = {"refused": "config_field", "field": "head_dim"}
# mlx_lm's layers have heads of an even share of the row alone.
_OTHER: Final[dict[str, dict[str, Any]]] = {
    "qwen2-wide_head": _HEAD,
    "mixtral-wide_head": _HEAD,
    "granite-wide_head": _HEAD,
    # With the ids of 5 transformers chooses another expert in one row than its model in float64
    # does, with those of 4 two experts are close in a row.
    "qwen3_5_moe-partial_0.5": {"seed": 6},
    "qwen3_next-equal_heads": {"seed": 6},
}
_ALL: Final = {
    name: dataclasses.replace(one, **_OTHER.get(name, {}))
    for name, one in _SHARED.items()
    if not one.refused
}

VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
