"""Families with a recurrence in some layers that the checkpoint's own table has not, as data.

It reads no config; ``wide.py`` and ``hybrid_configs.py`` do. Fields and defaults are those of the
families' config classes in transformers 5.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx import hybrid_configs
from stagelink_mlx.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HYBRID_RECIPES"]

_TIED: Final = {"tie_word_embeddings": True}
_LFM2_WORDS: Final = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
_LFM2_PARTS: Final = tuple(
    (f".feed_forward.{old}.", f".feed_forward.{new}.")
    for old, new in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))
)

HYBRID_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "lfm2": Recipe(
            "lfm2",
            fixed_fields(block_use_swiglu=True, use_pos_enc=True, **_TIED),
            meant={
                "conv_L_cache": 3,
                "conv_bias": False,
                "block_auto_adjust_ff_dim": True,
                "block_ffn_dim_multiplier": 1.0,
                "block_multiple_of": 256,
                **_TIED,
            },
            norm="embedding_norm",
            words=_LFM2_WORDS,
            kinds={"conv": "linear"},
            mixer=("operator_norm", "conv"),
            layout="recurrent",
            settle=hybrid_configs.settle_lfm2,
        ),
        "lfm2_moe": Recipe(
            "lfm2_moe",
            fixed_fields(use_pos_enc=True, **_TIED),
            meant={
                "conv_L_cache": 3,
                "conv_bias": False,
                "num_dense_layers": 2,
                "norm_topk_prob": True,
                "routed_scaling_factor": 1.0,
                "use_expert_bias": True,
                **_TIED,
            },
            norm="embedding_norm",
            words=_LFM2_WORDS,
            kinds={"conv": "linear"},
            mixer=("operator_norm", "conv"),
            layout="recurrent",
            renames=_LFM2_PARTS,
            settle=hybrid_configs.settle_lfm2,
        ),
    }
)
