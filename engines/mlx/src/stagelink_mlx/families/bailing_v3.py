"""Ling 3 as data: Kimi's delta attention, and latent attention with a gate, beside experts.

It reads no config; ``configs/wide.py`` and ``configs/bailing_v3.py`` do. Fields and defaults are
those of the config class in transformers 5.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.bailing_v3 import (
    BAILING_V3_LIMITS,
    BAILING_V3_WORDS,
    settle_bailing_v3,
)
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BAILING_V3_RECIPES"]

BAILING_V3_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        # Its files say bailing_hybrid; families/named.py tells which is meant.
        "bailing_moe_v3": Recipe(
            "bailing_moe_v3",
            fixed_fields(
                attention_bias=False,
                gated_attention_proj_granularity_type="head_wise",
                hidden_act="silu",
                linear_attention="kda",
                moe_router_enable_expert_bias=True,
                no_kda_lora=True,
                norm_head=False,
                norm_softmax=False,
                rope_interleave=True,
                scale_router_input=False,
                score_function="sigmoid",
                use_bias=False,
                use_kda_lora=False,
                use_mla_nope=False,
                use_qkv_bias=False,
                use_rmsnorm=True,
                value_norm=False,
            ),
            meant={
                **dict.fromkeys(BAILING_V3_LIMITS),
                "first_k_dense_replace": 2,
                "head_dim": 128,
                "intermediate_size": 6144,
                "kda_lower_bound": -5.0,
                "kda_safe_gate": True,
                "kv_lora_rank": 512,
                "layer_group_size": 6,
                "max_position_embeddings": 262144,
                "moe_intermediate_size": 768,
                "moe_shared_expert_intermediate_size": None,
                "n_group": 8,
                "no_kda_lora": True,
                "norm_topk_prob": True,
                "num_experts": 512,
                "num_experts_per_tok": 8,
                "num_shared_experts": 1,
                "q_lora_rank": None,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "rms_norm_eps": 1e-6,
                "rope_theta": 6000000.0,
                "routed_scaling_factor": 2.5,
                "short_conv_kernel_size": 4,
                "tie_word_embeddings": False,
                "topk_group": 4,
                "v_head_dim": 128,
            },
            traditional=True,
            array_mask=True,
            dense=(".kv_b_proj.",),
            layout="bailing_v3",
            embedding="word_embeddings",
            renames=((".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"),),
            attention="attention",
            kinds=MappingProxyType({"linear_attention": "linear"}),
            mixer=("input_layernorm", "attention"),
            words=BAILING_V3_WORDS,
            made=frozenset((*BAILING_V3_LIMITS, "norm_topk_prob", "rope_interleave")),
            floats=(".A_log", ".dt_bias"),
            settle=settle_bailing_v3,
        ),
    }
)
