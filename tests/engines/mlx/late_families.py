"""Tiny families of mlx_lm that came to this engine last and transformers has too, as data.

It makes no checkpoint; the variants of their configs are in ``late_variants.py``.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["LATE", "PLAIN"]

PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}

# As `stagelink_conformance.families.FAMILIES` has them.
LATE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "dbrx": (
        "dbrx",
        {
            "d_model": 64,
            # No field of the family.
            "intermediate_size": None,
            "rope_parameters": dict(PLAIN),
            "attn_config": {"clip_qkv": 0.7, "kv_n_heads": 2, "rope_theta": 30000.0},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 8, "moe_top_k": 3},
        },
    ),
    # So many heads of the indexer, and blocks so small, that many rows see a choice.
    "minimax_m3_vl_text": (
        "minimax_m3_vl_text",
        {
            "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5},
            "head_dim": 24,
            "rotary_dim": 12,
            "intermediate_size": 48,
            "dense_intermediate_size": 96,
            "shared_intermediate_size": 40,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "mlp_layer_types": ["dense", *["sparse"] * 7],
            "layer_types": ["full_attention", *["minimax_m3_sparse"] * 6, "full_attention"],
            "swiglu_alpha": 1.3,
            "swiglu_limit": 0.6,
            "routed_scaling_factor": 1.5,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 8,
            "index_topk_blocks": 4,
        },
    ),
    "bailing_hybrid": (
        "bailing_hybrid",
        {
            "rope_parameters": dict(PLAIN),
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
            "layer_group_size": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "kv_lora_rank": 24,
            "q_lora_rank": 40,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 2,
            "routed_scaling_factor": 1.5,
            "short_conv_kernel_size": 3,
            "kda_lower_bound": -3.0,
        },
    ),
}
