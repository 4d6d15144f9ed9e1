"""DBRX as data: sixteen experts, one matrix for queries, keys and values, bounded.

It reads no config; ``configs/wide.py`` and ``configs/dbrx.py`` do. Fields and defaults are those of
the config class in transformers 5.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.dbrx import DBRX_WORDS, settle_dbrx
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DBRX_RECIPES"]

DBRX_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "dbrx": Recipe(
            "dbrx",
            fixed_fields(tie_word_embeddings=False),
            meant={"tie_word_embeddings": False},
            body="transformer",
            layers="blocks",
            embedding="wte",
            norm="norm_f",
            attention="norm_attn_norm.attn",
            words=DBRX_WORDS,
            made=frozenset(("emb_pdrop", "num_key_value_heads")),
            layout="rows_of_experts",
            renames=((".ffn.router.layer.", ".ffn.gate."),),
            settle=settle_dbrx,
        ),
    }
)
