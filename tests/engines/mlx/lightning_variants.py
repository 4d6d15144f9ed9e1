"""Configs of the families of lightning attention that mlx_lm alone defines, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.held_whole import WholeVariant

_BASE: Final = WholeVariant(
    "bailing_moe_linear",
    {
        "first_k_dense_replace": 1,
        "group_norm_size": 2,
        "layer_group_size": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 4,
        "num_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "rope_theta": 20000.0,
        "score_function": "sigmoid",
        "use_qk_norm": True,
    },
    names=((".mlp.gate.gate_proj.", ".mlp.gate."),),
    # Each of the two was up to 2.7e-5 off from the same model in float64, with the ids of 4 to 8.
    tolerance=5e-5,
)


# Beside it the layers that attend are latent, and the choice of experts is in groups.
_HYBRID: Final = WholeVariant(
    "bailing_hybrid",
    {
        **_BASE.fields,
        "head_dim": 16,
        "kv_lora_rank": 32,
        "moe_router_enable_expert_bias": True,
        "n_group": 4,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "routed_scaling_factor": 1.5,
        "topk_group": 2,
        "v_head_dim": 32,
    },
    names=_BASE.names,
    is_stacked=True,
    tolerance=5e-5,
)


def _hybrid(fields: dict[str, Any], refused: str = "", field: str = "") -> WholeVariant:
    return dataclasses.replace(
        _HYBRID, fields={**_HYBRID.fields, **fields}, refused=refused, field=field
    )


def _with(fields: dict[str, Any], refused: str = "", field: str = "") -> WholeVariant:
    return dataclasses.replace(
        _BASE, fields={**_BASE.fields, **fields}, refused=refused, field=field
    )


VARIANTS: Final = {
    "as_it_is": _BASE,
    "left_over": _with({"layer_group_size": 4}),
    "all_attend": _with({"layer_group_size": 1}),
    "biases": _with({"use_bias": True, "use_qkv_bias": True}),
    "softmax": _with({"score_function": "softmax"}),
    "tied": _with({"tie_word_embeddings": True}),
    "quantized": dataclasses.replace(_BASE, bits=8),
    "hybrid": _HYBRID,
    "hybrid-left_over": _hybrid({"layer_group_size": 4}),
    "hybrid-all_attend": _hybrid({"layer_group_size": 1}),
    "hybrid-biases": _hybrid({"use_bias": True, "use_qkv_bias": True}),
    "hybrid-softmax": _hybrid({"score_function": "softmax", "n_group": 1, "topk_group": 1}),
    "hybrid-uses_1": _hybrid({"num_experts_per_tok": 1}),
    "hybrid-uncorrected": _hybrid({"moe_router_enable_expert_bias": False}),
    "hybrid-bare_heads": _hybrid({"use_qk_norm": False}),
    "hybrid-large_queries": _hybrid({"q_lora_rank": None}),
    "hybrid-halves": _hybrid({"rope_interleave": False}),
    "hybrid-turns_all": _hybrid({"partial_rotary_factor": 1.0, "head_dim": 24}),
    "hybrid-none_shared": _hybrid({"num_shared_experts": 0}),
    "hybrid-tied": _hybrid({"tie_word_embeddings": True}),
    "hybrid-linear": _hybrid({"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "hybrid-quantized": dataclasses.replace(_HYBRID, bits=8),
    "hybrid-released": dataclasses.replace(
        _HYBRID,
        file={
            "architectures": ["BailingMoeV2_5ForCausalLM"],
            "max_window_layers": 6,
            "mtp_loss_scaling_factor": 0,
            "num_nextn_predict_layers": 1,
            "output_dropout": 0.0,
            "qk_head_dim": 48,
            "rotary_dim": 8,
            "router_dtype": "fp32",
            "use_rmsnorm": True,
            "use_sliding_window": False,
        },
    ),
}
REFUSED: Final = {
    "shared_keys": _with({"num_key_value_heads": 2}, "config_field", "num_key_value_heads"),
    "no_group": _with({"layer_group_size": 7}, "config_field", "layer_group_size"),
    "hybrid-turned": _hybrid({"rotary_dim": 16}, "config_field", "rotary_dim"),
    "hybrid-groups": _hybrid({"group_norm_size": 3}, "config_field", "group_norm_size"),
    "hybrid-convolutions": _hybrid(
        {"short_conv_kernel_size": 4}, "config_field", "short_conv_kernel_size"
    ),
    "hybrid-unknown": dataclasses.replace(
        _HYBRID, file={"rows_twisted": 3}, refused="config_field", field="rows_twisted"
    ),
    "unknown": dataclasses.replace(
        _BASE, file={"rows_twisted": 3}, refused="config_field", field="rows_twisted"
    ),
}
