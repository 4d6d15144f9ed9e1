"""Families with experts that no library but mlx_lm defines, as data.

It reads no config; ``wide.py`` does. Fields are those of mlx_lm's arguments, and what is meant
where a config leaves one out is what mlx_lm takes.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LONE_RECIPES"]

LONE_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "bailing_moe": Recipe(
            "bailing_moe",
            fixed_fields(
                hidden_act="silu",
                multi_gate=False,
                norm_head=False,
                norm_softmax=False,
                use_rmsnorm=True,
            ),
            meant={
                "moe_router_enable_expert_bias": False,
                "moe_router_enable_routed_scaling": True,
                "moe_router_enable_shared_expert": True,
                "moe_shared_expert_intermediate_size": None,
                "n_group": 1,
                "norm_head": False,
                "norm_softmax": False,
                "rotary_dim": None,
                "routed_scaling_factor": 1.0,
                "score_function": "softmax",
                "tie_word_embeddings": False,
                "topk_group": 4,
                "use_bias": False,
                "use_qk_norm": False,
                "use_qkv_bias": False,
            },
            layout="stacked",
            embedding="word_embeddings",
            renames=((".mlp.gate.weight", ".mlp.gate.gate_proj.weight"),),
            attention="attention",
            made=frozenset(("output_dropout", "router_dtype")),
        ),
        "deepseek": Recipe(
            "deepseek",
            fixed_fields(
                hidden_act="silu",
                norm_topk_prob=False,
                scoring_func="softmax",
                tie_word_embeddings=False,
            ),
            meant={
                "attention_bias": False,
                "first_k_dense_replace": 0,
                "moe_layer_freq": 1,
                "n_routed_experts": None,
                "n_shared_experts": None,
                "num_experts_per_tok": None,
                "tie_word_embeddings": False,
            },
            layout="stacked",
        ),
        "Klear": Recipe(
            "Klear",
            fixed_fields(hidden_act="silu", tie_word_embeddings=False),
            meant={"tie_word_embeddings": False},
            layout="stacked_in_place",
        ),
    }
)
