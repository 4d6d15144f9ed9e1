"""Tiny families with experts or latent attention outside the table, as data.

It makes no checkpoint; the variants of their configs are in ``expert_variants.py``.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["EXPERTS", "PLAIN", "WINDOW"]

WINDOW: Final = 16
PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}
_BY_KIND: Final = {
    "full_attention": {**PLAIN, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
}
_FOURTH_FULL: Final = (["sliding_attention"] * 3 + ["full_attention"]) * 2
_ROUTED: Final = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "n_group": 4,
    "topk_group": 2,
}

_LATENT: Final = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}


# So many heads that no position has the score 0, which others would have, too.
_INDEXED: Final = {
    "q_lora_rank": 40,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 48,
    "first_k_dense_replace": 2,
}


def _family(name: str, **fields: object) -> tuple[str, dict[str, Any]]:
    return name, {"rope_parameters": dict(PLAIN), **fields}


# As `stagelink_conformance.families.FAMILIES` has them.
EXPERTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "glm4_moe": _family("glm4_moe", **_ROUTED, head_dim=24, first_k_dense_replace=2),
    "dots1": _family("dots1", **_ROUTED, head_dim=24, first_k_dense_replace=2),
    "solar_open": _family("solar_open", **_ROUTED, head_dim=24),
    "exaone_moe": _family(
        "exaone_moe",
        num_experts=8,
        num_experts_per_tok=3,
        num_shared_experts=1,
        moe_intermediate_size=32,
        routed_scaling_factor=1.5,
        n_group=4,
        topk_group=2,
        head_dim=24,
        first_k_dense_replace=2,
        sliding_window=WINDOW,
        layer_types=_FOURTH_FULL,
    ),
    "glm4_moe_lite": _family("glm4_moe_lite", **_ROUTED, **_LATENT, q_lora_rank=40),
    "youtu": _family("youtu", **_LATENT, q_lora_rank=40),
    "minimax_m2": (
        "minimax_m2",
        {
            "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5},
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 48,
            "head_dim": 24,
        },
    ),
    "afmoe": _family(
        "afmoe",
        num_experts=8,
        num_experts_per_tok=3,
        num_shared_experts=1,
        moe_intermediate_size=32,
        route_scale=1.5,
        num_dense_layers=2,
        head_dim=24,
        mup_enabled=True,
        sliding_window=WINDOW,
    ),
    "ernie4_5_moe": _family(
        "ernie4_5_moe",
        moe_num_experts=8,
        moe_k=3,
        moe_num_shared_experts=1,
        moe_intermediate_size=32,
        moe_layer_start_index=2,
        tie_word_embeddings=False,
    ),
    "hunyuan_v1_moe": _family(
        "hunyuan_v1_moe", num_experts=8, moe_topk=3, intermediate_size=48, head_dim=16
    ),
    "llama4_text": _family(
        "llama4_text",
        num_local_experts=4,
        num_experts_per_tok=1,
        intermediate_size=48,
        intermediate_size_mlp=96,
        interleave_moe_layer_step=2,
        head_dim=24,
        attention_chunk_size=WINDOW,
        floor_scale=20,
        attn_scale=0.5,
    ),
    "mistral4": (
        "mistral4",
        {
            **_ROUTED,
            **_LATENT,
            "q_lora_rank": 40,
            "first_k_dense_replace": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.4,
            },
        },
    ),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        {
            "rope_parameters": dict(_BY_KIND),
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
            "n_group": 4,
            "topk_group": 2,
            "num_attention_heads": 8,
            "head_dim": 24,
            "v_head_dim": 12,
            "attention_value_scale": 0.6,
            "sliding_window": WINDOW,
            "layer_types": _FOURTH_FULL,
        },
    ),
    "laguna": (
        "laguna",
        {
            "rope_parameters": dict(_BY_KIND),
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 40,
            "moe_routed_scaling_factor": 1.5,
            "num_attention_heads_per_layer": [4, 6] * 4,
            "head_dim": 24,
            "sliding_window": WINDOW,
            "layer_types": _FOURTH_FULL,
        },
    ),
    "deepseek_v32": _family("deepseek_v32", **_ROUTED, **_LATENT, **_INDEXED),
    "glm_moe_dsa": _family("glm_moe_dsa", **_ROUTED, **_LATENT, **_INDEXED),
    "phimoe": _family(
        "phimoe",
        num_local_experts=8,
        attention_bias=True,
        lm_head_bias=True,
        intermediate_size=48,
        router_jitter_noise=0.05,
    ),
}
