"""Variants of the configs of families whose layers read token ids or one another's keys, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from tests.engines.mlx.hybrid_families import FULL, PLAIN, SLIDING
from tests.engines.torch.variants import Variant

# What transformers builds with, what the file says afterwards, and the field of the refusal.
Refused: TypeAlias = tuple[dict[str, Any], dict[str, Any], str]
_NOTHING_SHARED: Final = {"num_kv_shared_layers": 0}


def _gemma3n() -> dict[str, Variant]:
    name = "gemma3n_text"
    two = {"layer_types": [SLIDING, FULL], "activation_sparsity_pattern": [0.9, 0.0]}
    thetas = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    plain = {FULL: {**PLAIN, "rope_theta": 1e6}, SLIDING: {**PLAIN, "rope_theta": 1e4}}
    released = {
        "rope_parameters": None,
        "altup_lr_multiplier": 1.0,
        "query_pre_attn_scalar": 16,
        **thetas,
    }
    said = {
        "as_it_is": Variant(name),
        "two_layers": Variant(name, {"num_hidden_layers": 2, **two, **_NOTHING_SHARED}),
        "nothing_shared": Variant(name, _NOTHING_SHARED),
        "two_streams": Variant(name, {"altup_num_inputs": 2}),
        "one_stream": Variant(name, {"altup_num_inputs": 1}),
        "third_active": Variant(name, {"altup_active_idx": 2}),
        "unscaled": Variant(name, {"altup_correct_scale": False}),
        # transformers bounds coefficients in training alone.
        "clipped": Variant(name, {"altup_coef_clip": 0.05}),
        "cap": Variant(name, {"final_logit_softcapping": 2.0}),
        "widths": Variant(name, {"intermediate_size": [96, 128, *[64] * 6]}),
        "dense": Variant(name, {"activation_sparsity_pattern": [0.0] * 8}),
        "dense_unsaid": Variant(
            name,
            {"activation_sparsity_pattern": [0.0] * 8},
            {"activation_sparsity_pattern": None},
        ),
        "untied": Variant(name, {"tie_word_embeddings": False}),
        "released": Variant(name, {"rope_parameters": plain}, released),
        "bfloat16": Variant(name, stored="bfloat16"),
    }
    refused: dict[str, Refused] = {
        "bias": ({"attention_bias": True}, {}, "attention_bias"),
        "activation": ({"hidden_activation": "silu"}, {}, "hidden_activation"),
        "pattern": ({}, {"activation_sparsity_pattern": [0.5] * 7}, "activation_sparsity_pattern"),
        "share": (
            {},
            {"activation_sparsity_pattern": [1.0, *[0.0] * 7]},
            "activation_sparsity_pattern",
        ),
        "active": ({}, {"altup_active_idx": 4}, "altup_active_idx"),
        "width": ({}, {"intermediate_size": [128] * 7}, "intermediate_size"),
        "flat": ({}, {"rope_parameters": dict(PLAIN)}, "rope_parameters"),
        "thetas": ({}, {"rope_local_base_freq": 20000.0}, "rope_local_base_freq"),
        "unknown": ({}, {"altup_depth": 2}, "altup_depth"),
        "kinds": ({}, {"layer_types": None}, "layer_types"),
    }
    return _named(name, said, refused)


def _gemma4() -> dict[str, Variant]:
    name = "gemma4_small"
    two = {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL]}
    experts = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
    said = {
        "as_it_is": Variant(name),
        "two_layers": Variant(name, {**two, **_NOTHING_SHARED}),
        "nothing_shared": Variant(name, _NOTHING_SHARED),
        # With hidden states asked for, which transformers gives for keys that are shared alone.
        "no_tokens": Variant(
            name, {"hidden_size_per_layer_input": 0, "output_hidden_states": True}
        ),
        "single_width": Variant(name, {"use_double_wide_mlp": False}),
        "alike": Variant(name, {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
        "experts": Variant(name, {"enable_moe_block": True, **experts}),
        "bfloat16": Variant(name, stored="bfloat16"),
        "released": Variant(name, {}, {"per_layer_config": None, "global_head_dim": 24}),
    }
    refused: dict[str, Refused] = {
        "table": ({}, {"vocab_size_per_layer_input": 200}, "vocab_size_per_layer_input"),
        "kinds": ({}, {"layer_types": None}, "layer_types"),
        "borrowed": ({}, {"layer_types": [SLIDING] * 5 + [FULL] * 3}, "layer_types"),
    }
    return _named(name, said, refused)


def _named(
    name: str,
    said: dict[str, Variant],
    refused: dict[str, Refused],
) -> dict[str, Variant]:
    """Name variants by their family, and those to be refused by their field."""
    codes = {"layer_types": "layer_types"}
    all_of = said | {
        key: Variant(name, changes, file, codes.get(field, "config_field"), field)
        for key, (changes, file, field) in refused.items()
    }
    return {f"{name}-{key}": one for key, one in all_of.items()}


_ALL: Final = _gemma3n() | _gemma4()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
