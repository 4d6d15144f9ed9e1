"""Configs of families that mlx_lm alone defines, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.held_whole import WholeVariant

__all__ = ["REFUSED", "VARIANTS"]

_PROJECTIONS: Final = ("gate_proj", "up_proj", "down_proj")
_ROUTED: Final[dict[str, Any]] = {"moe_intermediate_size": 32, "num_experts_per_tok": 3}
_BAILING: Final = WholeVariant(
    "bailing_moe",
    {
        **_ROUTED,
        "num_experts": 8,
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "rope_theta": 20000.0,
        "first_k_dense_replace": 2,
        "partial_rotary_factor": 0.5,
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "routed_scaling_factor": 1.5,
        "n_group": 4,
        "topk_group": 2,
        "use_qk_norm": True,
    },
    names=((".mlp.gate.gate_proj.", ".mlp.gate."),),
)
_DEEPSEEK: Final = WholeVariant(
    "deepseek",
    {
        **_ROUTED,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "rope_theta": 20000.0,
    },
)
_KLEAR: Final = WholeVariant(
    "Klear",
    {
        **_ROUTED,
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts": 8,
        "rope_theta": 20000.0,
    },
)
_STEP: Final = WholeVariant(
    "step3p5",
    {
        "num_key_value_heads": None,
        "num_attention_groups": 2,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "moe_num_experts": 8,
        "moe_top_k": 3,
        "moe_router_scaling_factor": 1.5,
        "moe_layers_enum": "1,2,4,5",
        "share_expert_dim": 40,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "rope_theta": [5000.0, 5000.0, 20000.0] * 2,
        "partial_rotary_factors": [1.0, 1.0, 0.5] * 2,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 6,
            "num_attention_groups": 3,
        },
        "swiglu_limits": [None, None, 0.5, None, 0.3, 0.5],
        "swiglu_limits_shared": [None, 0.4, 0.0, 0.2, None, 0.3],
    },
    names=(
        *((f".mlp.switch_mlp.{one}.", f".moe.{one}.") for one in _PROJECTIONS),
        (".mlp.gate.gate.", ".moe.gate."),
        (".mlp.gate.router_bias", ".moe.router_bias"),
        (".mlp.share_expert.", ".share_expert."),
    ),
    is_stacked=True,
    tolerance=1e-4,
)
_MUSE: Final = WholeVariant(
    "muse_glimmer",
    {
        "head_dim": 16,
        "hidden_activation": "silu",
        "final_logit_softcapping": 4.0,
        "output_multiplier": 0.8,
        "qk_scale_factor": 2.5,
        "post_norm_eps": 0.01,
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "layer_rope_theta": [20000.0, 0, 20000.0, 20000.0, 0, 0],
    },
)
_BASES: Final = {one.module: one for one in (_BAILING, _DEEPSEEK, _KLEAR, _STEP, _MUSE)}


_LATENT: Final[dict[str, Any]] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
_GROUPED: Final[dict[str, Any]] = {
    **_ROUTED,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "rope_theta": 20000.0,
}
# Families that transformers has too, in the folders that mlx_lm makes of them.
_OF_MLX: Final[dict[str, dict[str, Any]]] = {
    "glm4_moe": {
        **_GROUPED,
        "head_dim": 32,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {"type": "linear", "factor": 1.0},
        "tie_word_embeddings": False,
        "use_qk_norm": True,
    },
    "glm4_moe_lite": {**_GROUPED, **_LATENT, "rms_norm_eps": 1e-6},
    "dots1": {**_GROUPED, "head_dim": 32},
    "minimax_m2": {
        "head_dim": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "rope_theta": 20000.0,
        "rotary_dim": 16,
        "shared_intermediate_size": 0,
    },
    "afmoe": {
        **_ROUTED,
        "head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_dense_layers": 1,
        "num_experts": 8,
        "num_shared_experts": 1,
        "tie_word_embeddings": False,
        "mup_enabled": True,
        "route_scale": 1.5,
        "rope_theta": 20000.0,
        "sliding_window": 16,
    },
    "exaone_moe": {
        **_ROUTED,
        "head_dim": 32,
        "is_moe_layer": [False, *[True] * 5],
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_experts": 8,
        "num_shared_experts": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "routed_scaling_factor": 1.5,
        "sliding_window": 16,
    },
}


def _with(base: WholeVariant, fields: dict[str, Any], refused: str = "") -> WholeVariant:
    """Return a variant with other fields; a refused one is refused by the last of them."""
    field = list(fields)[-1] if refused else ""
    return dataclasses.replace(base, fields={**base.fields, **fields}, refused=refused, field=field)


def _quantized() -> dict[str, WholeVariant]:
    found: dict[str, WholeVariant] = {}
    for name, fields in _OF_MLX.items():
        base = WholeVariant(name, {"rope_theta": 20000.0, **fields}, is_stacked=True)
        found[f"{name}-mlx_folder"] = base
        found[f"{name}-4_bits"] = dataclasses.replace(base, bits=4)
    latent = {**_LATENT, "rope_theta": 20000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
    found["youtu_llm-4_bits"] = WholeVariant("youtu_llm", latent, bits=4)
    # The first files, and those that mlx_lm made of them, say minimax.
    first = {**_OF_MLX["minimax_m2"], "attn_type_list": [1] * 6}
    found["minimax-4_bits"] = WholeVariant("minimax", first, is_stacked=True, bits=4)
    unsaid = dict(_OF_MLX["minimax_m2"])
    found["minimax-unsaid"] = WholeVariant(
        "minimax", unsaid, refused="config_field", field="attn_type_list"
    )
    found["bailing_moe-4_bits"] = dataclasses.replace(_BAILING, bits=4)
    found["Klear-4_bits"] = dataclasses.replace(_KLEAR, bits=4)
    found["step3p5-4_bits"] = _with(_STEP, {"share_expert_dim": 64})
    found["step3p5-4_bits"] = dataclasses.replace(found["step3p5-4_bits"], bits=4)
    found["deepseek-4_bits"] = dataclasses.replace(_DEEPSEEK, bits=4)
    return found


def _shared() -> dict[str, WholeVariant]:
    found: dict[str, WholeVariant] = {}
    for name, base in _BASES.items():
        few: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 259}
        for key in ("layer_types", "layer_rope_theta") if name == "muse_glimmer" else ():
            few[key] = base.fields[key][:2]
        found[f"{name}-two_layers"] = _with(base, few)
        found[f"{name}-as_it_is"] = base
        found[f"{name}-stacked"] = dataclasses.replace(base, is_stacked=True)
        shared = "num_attention_groups" if name == "step3p5" else "num_key_value_heads"
        found[f"{name}-one_kv_head"] = _with(base, {shared: 1})
        used = "moe_top_k" if name == "step3p5" else "num_experts_per_tok"
        if name != "muse_glimmer":
            found[f"{name}-uses_1"] = _with(base, {used: 1})
        found[f"{name}-activation"] = _with(base, {"hidden_act": "relu"}, "config_field")
        found[f"{name}-unknown"] = _with(base, {"rows_twisted": 3}, "config_field")
        dynamic = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
        found[f"{name}-dynamic"] = dataclasses.replace(
            _with(base, dynamic, "rope_scaling"), field="dynamic"
        )
    return found


def _own() -> dict[str, WholeVariant]:
    found: dict[str, WholeVariant] = {}
    plain = {
        "score_function": None,
        "moe_router_enable_expert_bias": None,
        "n_group": None,
        "topk_group": None,
        "use_qk_norm": None,
    }
    found["bailing_moe-first_files"] = _with(_BAILING, {**plain, "num_shared_experts": 2})
    for key, value in (
        ("tie_word_embeddings", True),
        ("norm_topk_prob", False),
        ("use_bias", True),
        ("use_qkv_bias", True),
        ("n_group", 1),
        ("num_shared_experts", 0),
        ("moe_shared_expert_intermediate_size", 40),
        ("rotary_dim", 4),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ):
        found[f"bailing_moe-{key}"] = _with(_BAILING, {key: value})
    for key in ("norm_head", "norm_softmax", "multi_gate"):
        found[f"bailing_moe-{key}"] = _with(_BAILING, {key: True}, "config_field")
    for key, value in (
        ("attention_bias", True),
        ("moe_layer_freq", 2),
        ("n_shared_experts", None),
        ("n_routed_experts", None),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ):
        found[f"deepseek-{key}"] = _with(_DEEPSEEK, {key: value})
    for key, value in (("norm_topk_prob", True), ("scoring_func", "sigmoid")):
        found[f"deepseek-{key}"] = _with(_DEEPSEEK, {key: value}, "config_field")
    for key, value in (
        ("norm_expert_weight", False),
        ("use_head_wise_attn_gate", False),
        ("attention_other_setting", None),
        ("moe_layers_enum", None),
        ("partial_rotary_factors", None),
        ("swiglu_limits", None),
    ):
        found[f"step3p5-{key}"] = _with(_STEP, {key: value})
    for key, value in (("tie_word_embeddings", True), ("rms_norm_eps", 0.1)):
        found[f"muse_glimmer-{key}"] = _with(_MUSE, {key: value})
    usual = {"layer_types": None, "layer_rope_theta": None, "num_hidden_layers": 8}
    found["muse_glimmer-usual"] = _with(_MUSE, usual)
    odd = {"layer_rope_theta": [100.0, 0, 200.0] * 2}
    found["muse_glimmer-thetas"] = _with(_MUSE, odd, "config_field")
    ropes = {"rope_theta": [1000.0 * (n + 1) for n in range(6)]}
    found["step3p5-thetas"] = _with(_STEP, ropes, "config_field")
    found["step3p5-zero_centered"] = _with(_STEP, {"zero_centered": False}, "config_field")
    for key, value in (
        ("attention_bias", True),
        ("decoder_sparse_step", 2),
        ("mlp_only_layers", [1, 3]),
        ("norm_topk_prob", False),
        ("n_shared_experts", 2),
    ):
        found[f"Klear-{key}"] = _with(_KLEAR, {key: value})
    return found


_ALL: Final = _shared() | _own() | _quantized()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
