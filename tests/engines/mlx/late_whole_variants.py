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


_ALL: Final = _gear() | _kimi()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
