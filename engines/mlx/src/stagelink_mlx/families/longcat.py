"""LongCat-Flash, whose layers attend twice and have experts that do nothing, as data.

It reads no config; ``configs/wide.py`` and ``configs/longcat.py`` do.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.longcat import TWICE, settle_longcat
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LONGCAT_RECIPES"]

# What transformers computes, whatever a file says of it.
_ALWAYS: Final = {
    "attention_method": "MLA",
    "mla_scale_kv_lora": True,
    "mla_scale_q_lora": True,
    "norm_topk_prob": False,
    "router_bias": False,
    "tie_word_embeddings": False,
    "zero_expert_type": "identity",
}

LONGCAT_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "longcat_flash": Recipe(
            "longcat_flash",
            fixed_fields(hidden_act="silu", **_ALWAYS),
            meant={
                **_ALWAYS,
                "attention_bias": False,
                "rope_theta": 10000000.0,
                "zero_expert_num": 256,
            },
            traditional=True,
            array_mask=True,
            dense=(".kv_b_proj.",),
            layout="idle_experts",
            renames=((".mlp.router.classifier.", ".mlp.router."),),
            words={
                "intermediate_size": "ffn_hidden_size",
                "moe_intermediate_size": "expert_ffn_hidden_size",
                "num_experts_per_tok": "moe_topk",
                "num_layers": "num_hidden_layers",
                "num_local_experts": "n_routed_experts",
            },
            kinds=MappingProxyType({TWICE: "twice"}),
            drafter=("model.mtp.",),
            settle=settle_longcat,
        ),
    }
)
