"""Configs of families that came last and that mlx_lm's whole models hold, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.held_whole import WholeVariant

__all__ = ["REFUSED", "VARIANTS"]

_GEAR: Final = WholeVariant(
    "gear",
    {
        "head_dim": 24,
        "layer_types": ["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"] * 2,
        "num_hidden_layers": 8,
        "sliding_window": 16,
        "conv_L_cache": 4,
        "query_pre_attn_scalar": 40.0,
        "rope_theta": 30000.0,
        "rope_local_base_freq": 5000.0,
        "final_logit_softcapping": 6.0,
    },
    is_stacked=True,
    # MLX's own RoPE has other digits.
    tolerance=5e-4,
)


def _with(
    base: WholeVariant, fields: dict[str, Any], refused: str = "", **more: Any
) -> WholeVariant:
    """Return a variant with other fields; a refused one is refused by the last of them."""
    more = {"field": list(fields)[-1] if refused and fields else "", **more}
    return dataclasses.replace(base, fields={**base.fields, **fields}, refused=refused, **more)


def _gear() -> dict[str, WholeVariant]:
    few = {"num_hidden_layers": 2, "layer_types": ["conv_mixer", "full_attention"]}
    found = {
        "two_layers": _with(_GEAR, few),
        "as_it_is": _GEAR,
        "4_bits": _with(_GEAR, {}, bits=4),
        "unsaid": _with(_GEAR, {"query_pre_attn_scalar": None, "final_logit_softcapping": None}),
        "capped_scores": _with(_GEAR, {"attn_logit_softcapping": 2.0}),
        "biases": _with(_GEAR, {"attention_bias": True}),
        "untied": _with(_GEAR, {"tie_word_embeddings": False}),
        "silu": _with(_GEAR, {"hidden_activation": "silu"}),
        "scaled": _with(_GEAR, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        "no_convolution": _with(_GEAR, {"layer_types": ["sliding_attention"] * 8}),
    }
    for key, value in (
        ("hidden_activation", "relu"),
        ("rows_twisted", 3),
        ("rope_parameters", {"rope_theta": 1.0}),
    ):
        found[key] = _with(_GEAR, {}, "config_field", file={key: value}, field=key)
    return {f"gear-{name}": one for name, one in found.items()}


_TEXT: Final[dict[str, Any]] = {
    "architectures": ["TinyForCausalLM"],
    "model_type": "kimi_linear",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "situ",
    "activation_situ_beta": 1.5,
    "activation_situ_linear_beta": 0.8,
    "attn_res_block_size": 3,
    "kv_lora_rank": 32,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "mla_use_output_gate": True,
    "linear_attn_config": {
        "head_dim": 16,
        "num_heads": 4,
        "short_conv_kernel_size": 3,
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "full_attn_layers": [4, 8],
        "gate_lower_bound": -4.0,
        "use_full_rank_gate": True,
    },
    "num_experts": 8,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "routed_expert_hidden_size": 32,
    "latent_moe_use_norm": True,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
# Without experts the engine was 7.3e-5 off from the same model in float64, and mlx_lm 1.3e-4.
_KIMI: Final = WholeVariant("kimi_k3", {"text_config": _TEXT}, is_stacked=True, tolerance=3e-4)


def _text(fields: dict[str, Any], refused: str = "", **more: Any) -> WholeVariant:
    text = {key: value for key, value in {**_TEXT, **fields}.items() if value is not None}
    field = list(fields)[-1] if refused else ""
    return _with(_KIMI, {"text_config": text}, refused, **{"field": field, **more})


def _kimi() -> dict[str, WholeVariant]:
    linear: dict[str, Any] = _TEXT["linear_attn_config"]
    found = {
        "as_it_is": _KIMI,
        "4_bits": dataclasses.replace(_KIMI, bits=4),
        "no_blocks": _text({"attn_res_block_size": None}),
        "one_block": _text({"attn_res_block_size": 8}),
        "a_block_each": _text({"attn_res_block_size": 1}),
        "wide_experts": _text({"routed_expert_hidden_size": None, "latent_moe_use_norm": False}),
        "no_gate": _text({"mla_use_output_gate": False, "q_lora_rank": None}),
        "uses_1": _text({"num_experts_per_token": 1, "num_shared_experts": 0}),
        "unbound": _text({"activation_situ_beta": None, "activation_situ_linear_beta": None}),
        "no_experts": _text({"num_experts": None}),
        "tied": _text({"tie_word_embeddings": True}),
    }
    narrow = {**linear, "use_full_rank_gate": False, "gate_lower_bound": None}
    found["narrow_gate"] = _text({"linear_attn_config": narrow})
    few = {**linear, "kda_layers": [1], "full_attn_layers": [2]}
    found["two_layers"] = _text(
        {"num_hidden_layers": 2, "attn_res_block_size": 1, "linear_attn_config": few}
    )
    for key, value in (
        ("hidden_act", "silu"),
        ("mla_use_nope", False),
        ("rows_twisted", 3),
    ):
        text = {"text_config": {**_TEXT, key: value}}
        found[key] = _with(_KIMI, {}, "config_field", file=text, field=key)
    for key, value, field in (
        ("rows_twisted", 3, "linear_attn_config"),
        ("full_attn_layers", [1], "full_attn_layers"),
    ):
        text = {"text_config": {**_TEXT, "linear_attn_config": {**linear, key: value}}}
        found[f"linear_{key}"] = _with(_KIMI, {}, "config_field", file=text, field=field)
    return {f"kimi_k3-{name}": one for name, one in found.items()}


# Families that transformers has too, in the folders that mlx_lm makes of them.
_DBRX: Final = WholeVariant(
    "dbrx",
    {
        "attn_config": {"clip_qkv": 1.5, "kv_n_heads": 2, "rope_theta": 20000.0},
        "d_model": 64,
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 8, "moe_top_k": 3},
        "intermediate_size": None,
        "max_seq_len": 512,
        "n_heads": 4,
        "n_layers": 6,
        "rms_norm_eps": None,
        "tie_word_embeddings": False,
    },
    seed=9,
)
_MINIMAX_TEXT: Final[dict[str, Any]] = {
    **{key: _TEXT[key] for key in ("hidden_size", "vocab_size", "max_position_embeddings")},
    "model_type": "minimax_m3_vl_text",
    "dense_intermediate_size": 96,
    "head_dim": 32,
    "hidden_act": "swigluoai",
    "index_block_size": 8,
    "index_head_dim": 32,
    "index_n_heads": 2,
    "index_topk_blocks": 4,
    "intermediate_size": 32,
    "layer_types": ["full_attention", *["minimax_m3_sparse"] * 5],
    "mlp_layer_types": ["dense", *["sparse"] * 5],
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 20000.0, "partial_rotary_factor": 0.5},
    "routed_scaling_factor": 1.5,
    "shared_intermediate_size": 64,
    "swiglu_limit": 0.6,
}
_MINIMAX: Final = WholeVariant(
    "minimax_m3_vl",
    {"text_config": _MINIMAX_TEXT},
    # As the family's own files have them.
    names=(
        *(
            (f".switch_mlp.{new}.", f".switch_mlp.{old}.")
            for new, old in (
                ("gate_proj", "w1"),
                ("down_proj", "w2"),
                ("up_proj", "w3"),
            )
        ),
    ),
    # MLX's own RoPE has other digits.
    tolerance=5e-4,
)
_LING: Final = WholeVariant(
    "bailing_hybrid",
    {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "first_k_dense_replace": 1,
        "head_dim": 32,
        "kda_lower_bound": -4.0,
        "kda_safe_gate": True,
        "kv_lora_rank": 32,
        "layer_group_size": 3,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 64,
        "n_group": 4,
        "no_kda_lora": True,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_key_value_heads": 4,
        "num_shared_experts": 1,
        "q_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 20000.0,
        "routed_scaling_factor": 1.5,
        "topk_group": 2,
        "v_head_dim": 32,
    },
    is_stacked=True,
    tolerance=1e-4,
)


def _folders() -> dict[str, WholeVariant]:
    found: dict[str, WholeVariant] = {}
    for name, base in (("dbrx", _DBRX), ("minimax_m3", _MINIMAX), ("ling3", _LING)):
        found[f"{name}-mlx_lm"] = base
        found[f"{name}-4_bits"] = dataclasses.replace(base, bits=4)
    found["ling3-tied"] = _with(_LING, {"tie_word_embeddings": True})
    return found


_ALL: Final = _gear() | _kimi() | _folders()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
