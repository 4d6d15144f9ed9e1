"""A family whose rows run through all layers twice, and that mlx_lm alone defines, as data.

It reads no config; ``configs/wide.py`` and ``configs/loops.py`` do. Such a model has no cut: it is
served by one stage.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.longcat import TWICE
from stagelink_mlx.configs.loops import settle_loops
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LOOP_RECIPES"]

LOOP_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "iquestloopcoder": Recipe(
            "iquestloopcoder",
            fixed_fields(hidden_act="silu", loop_num=2),
            meant={
                "attention_bias": False,
                "loop_num": 2,
                "loop_window_size": 64,
                "mlp_bias": False,
                "rope_theta": 500000.0,
                "tie_word_embeddings": False,
            },
            kinds=MappingProxyType({TWICE: "twice"}),
            loops="gate_projections",
            settle=settle_loops,
        ),
    }
)
