"""The text of MiniMax-M3 as data: layers whose rows see chosen blocks of positions.

It reads no config; ``configs/wide.py`` and ``configs/minimax_m3.py`` do. Fields and defaults are
those of the config class in transformers 5.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.minimax_m3 import settle_minimax_m3
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MINIMAX_M3_RECIPES"]

_SPARSE: Final = ("experts", "gate", "shared_experts", "switch_mlp")
_DENSE: Final = ("gate_proj", "up_proj", "down_proj", "gate_up_proj")
_RECIPE: Final = Recipe(
    "minimax_m3_vl",
    fixed_fields(
        # The word of released files for the one activation that the family has.
        hidden_act=("silu", "swigluoai"),
        attention_output_gate=False,
        n_shared_experts=1,
        qk_norm_type="per_head",
        scoring_func="sigmoid",
        use_gemma_norm=True,
        use_qk_norm=True,
        use_routing_bias=True,
    ),
    "TextArgs",
    outer="language_model.",
    meant={
        "dense_intermediate_size": 12288,
        "head_dim": 128,
        "index_block_size": 128,
        "index_head_dim": 128,
        "index_local_blocks": 1,
        "index_n_heads": 4,
        "index_topk_blocks": 16,
        "intermediate_size": 3072,
        "max_position_embeddings": 524288,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 4,
        "num_local_experts": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000.0,
        "routed_scaling_factor": 2.0,
        "shared_intermediate_size": 3072,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "use_gemma_norm": True,
        "use_qk_norm": True,
    },
    layout="joined_halves",
    renames=(
        # What transformers 5 writes, and a dense block where some files have it.
        (".self_attn.indexer.", ".self_attn.index_"),
        *((f".mlp.{one}.", f".block_sparse_moe.{one}.") for one in _SPARSE),
        *((f".block_sparse_moe.{one}.", f".mlp.{one}.") for one in _DENSE),
        (".block_sparse_moe.e_score_", ".block_sparse_moe.gate.e_score_"),
    ),
    kinds=MappingProxyType({"minimax_m3_sparse": "indexed"}),
    words={"num_experts": "num_local_experts"},
    # The last one is of a drafter, whose tensors nobody reads.
    made=frozenset(("swiglu_alpha", "swiglu_limit", "num_mtp_modules")),
    drafter=(".mtp.", "mtp."),
    settle=settle_minimax_m3,
)

MINIMAX_M3_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    # Files name the text's own type, or that of the whole alone.
    dict.fromkeys(("minimax_m3_vl", "minimax_m3_vl_text"), _RECIPE)
)
