"""Tiny families with recurrent layers that only mlx_lm and transformers have, and variants.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.engines.torch.variants import Variant

_PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}
_FULL: Final = "full_attention"
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
}
# What two layers are of.
_TWO: Final[dict[str, dict[str, Any]]] = {
    "lfm2": {"layer_types": ["conv", _FULL]},
    "lfm2_moe": {"layer_types": [_FULL, "conv"], "num_dense_layers": 1},
}


def _shared() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in HYBRID:
        found[f"{name}-as_it_is"] = Variant(name)
        two = {"num_hidden_layers": 2, "vocab_size": 259, **_TWO[name]}
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
