"""Tiny families with recurrent layers, and gemma4, that mlx_lm and transformers have, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}
FULL: Final = "full_attention"
LINEAR: Final = "linear_attention"
SLIDING: Final = "sliding_attention"
_MAMBA2: Final = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
_LFM2_KINDS: Final = ["conv", "conv", FULL, "conv", "conv", FULL, "conv", "conv"]

_GEMMA4: Final[dict[str, Any]] = {
    "head_dim": 16,
    "global_head_dim": 24,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL, SLIDING, FULL],
    "sliding_window": 16,
    "final_logit_softcapping": 4.0,
    "rope_parameters": {
        FULL: {**PLAIN, "rope_type": "proportional", "partial_rotary_factor": 0.25},
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    },
}
# As `stagelink_conformance.families.FAMILIES` has them.
HYBRID: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "lfm2": (
        "lfm2",
        {"layer_types": _LFM2_KINDS, "rope_parameters": dict(PLAIN), "block_multiple_of": 32},
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            "layer_types": _LFM2_KINDS,
            "rope_parameters": dict(PLAIN),
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "num_dense_layers": 2,
            "routed_scaling_factor": 1.3,
        },
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            **_MAMBA2,
            "layer_types": [LINEAR, LINEAR, FULL, LINEAR] * 2,
            "rope_parameters": dict(PLAIN),
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 1.7,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "shared_intermediate_size": 48,
        },
    ),
    "falcon_h1": (
        "falcon_h1",
        {
            **_MAMBA2,
            "mamba_d_ssm": 128,
            "rope_parameters": dict(PLAIN),
            "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.9,
            "embedding_multiplier": 1.5,
            "key_multiplier": 0.8,
            "lm_head_multiplier": 0.7,
            "mlp_multipliers": [0.9, 1.1],
            "ssm_in_multiplier": 1.3,
            "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7],
            "ssm_out_multiplier": 0.6,
        },
    ),
    "mamba": ("mamba", {"state_size": 8}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8}),
    "mamba2": ("mamba2", {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2}),
    "jamba": (
        "jamba",
        {
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "expert_layer_period": 3,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
        },
    ),
    "olmo_hybrid": (
        "olmo_hybrid",
        {
            "layer_types": ([LINEAR] * 3 + [FULL]) * 2,
            "rope_parameters": dict(PLAIN),
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    # A width whose root bfloat16 rounds.
    "recurrent_gemma": (
        "recurrent_gemma",
        {
            "hidden_size": 96,
            "lru_width": 96,
            "head_dim": 24,
            "num_key_value_heads": 1,
            "attention_window_size": 16,
            "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5},
        },
    ),
    "gemma4_text": ("gemma4_text", {"hidden_size_per_layer_input": 0, **_GEMMA4}),
    "gemma4_unified_text": ("gemma4_unified_text", _GEMMA4),
    "kimi_linear": (
        "kimi_linear",
        {
            "layer_types": ([LINEAR] * 3 + [FULL]) * 2,
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "num_experts": 8,
            "num_experts_per_token": 2,
            "moe_intermediate_size": 32,
            "mlp_layer_types": ["dense"] + ["sparse"] * 7,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {
            "layers_block_type": [LINEAR, "mlp", FULL, "moe", LINEAR, "moe", FULL, LINEAR],
            "num_hidden_layers": 8,
            "ssm_state_size": 8,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "n_routed_experts": 8,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "head_dim": 16,
            "routed_scaling_factor": 1.5,
        },
    ),
}
