"""Tiny families with recurrent layers that only mlx_lm and transformers have, and variants.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.engines.torch.variants import Variant

_PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}
_FULL: Final = "full_attention"
_LINEAR: Final = "linear_attention"
_MAMBA2: Final = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
_LFM2_KINDS: Final = ["conv", "conv", _FULL, "conv", "conv", _FULL, "conv", "conv"]

# As `stagelink_conformance.families.FAMILIES` has them.
HYBRID: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "lfm2": (
        "lfm2",
        {"layer_types": _LFM2_KINDS, "rope_parameters": dict(_PLAIN), "block_multiple_of": 32},
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {
            "layer_types": _LFM2_KINDS,
            "rope_parameters": dict(_PLAIN),
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
            "layer_types": [_LINEAR, _LINEAR, _FULL, _LINEAR] * 2,
            "rope_parameters": dict(_PLAIN),
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
            "rope_parameters": dict(_PLAIN),
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
    "nemotron_h": (
        "nemotron_h",
        {
            "layers_block_type": [_LINEAR, "mlp", _FULL, "moe", _LINEAR, "moe", _FULL, _LINEAR],
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
# What two layers are of.
_TWO: Final[dict[str, dict[str, Any]]] = {
    "granitemoehybrid": {"layer_types": [_LINEAR, _FULL]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "nemotron_h": {"layers_block_type": [_LINEAR, "moe"]},
    "lfm2": {"layer_types": ["conv", _FULL]},
    "lfm2_moe": {"layer_types": [_FULL, "conv"], "num_dense_layers": 1},
}


def _shared() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in HYBRID:
        found[f"{name}-as_it_is"] = Variant(name)
        two = {"num_hidden_layers": 2, "vocab_size": 259, **_TWO.get(name, {})}
        found[f"{name}-two_layers"] = Variant(name, two)
        odd = {"rows_twisted": 3}
        found[f"{name}-unknown"] = Variant(name, {}, odd, "config_field", "rows_twisted")
        found[f"{name}-one_kv_head"] = Variant(name, {"num_key_value_heads": 1})
    return found


def _lfm2() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    numbers = {"layer_types": None, "full_attn_idxs": [2, 5]}
    for name in ("lfm2", "lfm2_moe"):
        found[f"{name}-conv_bias"] = Variant(name, {"conv_bias": True})
        found[f"{name}-long_conv"] = Variant(name, {"conv_L_cache": 5})
        linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
        found[f"{name}-linear"] = Variant(name, {"rope_parameters": linear})
        kinds = [_FULL, "conv", "conv", "conv", "conv", "conv", _FULL, _FULL]
        found[f"{name}-order"] = Variant(name, {"layer_types": kinds})
        found[f"{name}-all_attend"] = Variant(name, {"layer_types": [_FULL] * 8})
        apart = {"tie_word_embeddings": False}
        found[f"{name}-untied"] = Variant(name, {}, apart, "config_field", "tie_word_embeddings")
        wide = {"conv_dim": 99}
        found[f"{name}-conv_dim"] = Variant(name, {}, wide, "config_field", "conv_dim")
        sliding = {"layer_types": ["mamba"] * 8}
        found[f"{name}-mamba"] = Variant(name, {}, sliding, "layer_types", "layer_types")
    found["lfm2-numbers"] = Variant("lfm2", {}, numbers)
    other = {"full_attn_idxs": [1]}
    found["lfm2-two_words"] = Variant("lfm2", {}, other, "config_field", "full_attn_idxs")
    found["lfm2-released"] = Variant(
        "lfm2",
        {},
        {
            "block_dim": 64,
            "block_ff_dim": 128,
            "block_mlp_init_scale": 1.0,
            "block_norm_eps": 1e-05,
            "block_use_swiglu": True,
            "conv_dim": 64,
            "conv_dim_out": 64,
            "conv_use_xavier_init": True,
            "intermediate_size": None,
            "num_heads": 4,
            "rope_parameters": None,
            "rope_theta": 30000.0,
            "tie_embedding": True,
            "use_pos_enc": True,
        },
    )
    found["lfm2-plain_width"] = Variant("lfm2", {"block_auto_adjust_ff_dim": False})
    found["lfm2-multiplied"] = Variant("lfm2", {"block_ffn_dim_multiplier": 1.4})
    found["lfm2_moe-no_bias"] = Variant("lfm2_moe", {"use_expert_bias": False})
    found["lfm2_moe-norm_topk_prob"] = Variant("lfm2_moe", {"norm_topk_prob": False})
    found["lfm2_moe-all_dense"] = Variant("lfm2_moe", {"num_dense_layers": 8})
    for used in (1, 4):
        found[f"lfm2_moe-uses_{used}"] = Variant("lfm2_moe", {"num_experts_per_tok": used})
    return found


_ALL: Final = _shared() | _lfm2()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
