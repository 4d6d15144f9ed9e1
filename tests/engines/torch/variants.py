"""Variants of the families' configs that no other test has: what is changed, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Variant:
    """One config: a family of the tiny checkpoints, and what is different.

    Attributes:
        family: A key of ``FAMILIES``.
        changes: Fields that transformers builds the model with.
        file: Fields that are written into config.json afterwards; ``None`` takes a field out.
        refused: The reason of the refusal; empty where the model is to be run.
        field: What the refusal has to name.
        stored: The dtype of the checkpoint; it is run in float32.
        seed: Draws the token ids.
    """

    family: str
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    file: dict[str, Any] = dataclasses.field(default_factory=dict)
    refused: str = ""
    field: str = ""
    stored: str = "float32"
    seed: int = 4


def _rope(kind: str, **more: object) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_YARN: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG: dict[str, Any] = {
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 64,
}
_OLD_LINEAR = {
    "rope_parameters": None,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "linear", "factor": 2.0},
}
_ODD = {"vocab_size": 259}

_GROUPED = ("llama", "qwen2", "qwen3", "smollm3", "granite", "olmo2", "mixtral", "qwen3_moe")
_WITH_YARN = (*_GROUPED, "gpt_oss", "deepseek_v2", "deepseek_v3")
_TYPED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe", "gemma3_text", "gpt_oss")
_DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe")
_LATENT = ("deepseek_v2", "deepseek_v3")
ALL = (*_GROUPED, *_TYPED, *_LATENT)


def _kinds(family: str, layers: int) -> dict[str, Any]:
    """Return ``layers`` layers, the last of them of the family's full kind."""
    first = "linear_attention" if family in _DELTA else "sliding_attention"
    kinds = [first] * (layers - 1) + ["full_attention"]
    return {"num_hidden_layers": layers} | ({"layer_types": kinds} if family in _TYPED else {})


def _shared() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in ALL:
        sparse: dict[str, Any] = {"mlp_only_layers": []} if name.startswith("qwen3_") else {}
        sparse |= {"first_k_dense_replace": 0} if name in _LATENT else {}
        sparse = {} if name in ("qwen3_5_text", "qwen3_5_moe") else sparse
        found[f"{name}-one_layer"] = Variant(name, _kinds(name, 1) | sparse)
        found[f"{name}-two_layers"] = Variant(name, _kinds(name, 2) | sparse | _ODD)
        tied = name not in ("llama", "qwen2", "granite", "smollm3", "qwen3_5_text", "gemma3_text")
        found[f"{name}-tied_otherwise"] = Variant(name, {"tie_word_embeddings": tied})
        found[f"{name}-bfloat16"] = Variant(name, stored="bfloat16")
        act = "silu" if name == "gemma3_text" else "gelu"
        key = "hidden_activation" if name == "gemma3_text" else "hidden_act"
        found[f"{name}-activation"] = Variant(name, {key: act}, {}, "activation", key)
        found[f"{name}-unknown"] = Variant(
            name, {}, {"rows_twisted": 3}, "config_field", "rows_twisted"
        )
        if name not in _LATENT:
            found[f"{name}-one_kv_head"] = Variant(name, {"num_key_value_heads": 1})
            found[f"{name}-all_kv_heads"] = Variant(name, {"num_key_value_heads": 4})
            found[f"{name}-wide_head"] = Variant(name, {"head_dim": 24})
    return found


def _ropes() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in _GROUPED:
        found[f"{name}-linear"] = Variant(name, _rope("linear", factor=2.5))
        found[f"{name}-linear_old"] = Variant(name, _rope("linear", factor=2.0), _OLD_LINEAR)
        found[f"{name}-llama3"] = Variant(name, _rope("llama3", **_LLAMA3))
        dynamic = _rope("dynamic", factor=2.0)
        found[f"{name}-dynamic"] = Variant(name, dynamic, {}, "rope_scaling", "dynamic")
        long = _rope("longrope", **_LONG)
        found[f"{name}-longrope"] = Variant(name, long, {}, "rope_scaling", "longrope")
        share = _rope("default", partial_rotary_factor=0.5)
        field = "partial_rotary_factor"
        found[f"{name}-partial"] = Variant(name, share, {}, "config_field", field)
    for name in _WITH_YARN:
        found |= _yarns(name)
    for name in _LATENT:
        found[f"{name}-linear"] = Variant(name, _rope("linear", factor=2.5))
        found[f"{name}-plain"] = Variant(name, _rope("default"))
    for name in _DELTA:
        for part in (0.5, 1.0):
            rope = _rope("default", partial_rotary_factor=part)
            # With the ids of 4, row 148 of qwen3_5_moe has its second and third expert 2e-6 apart.
            found[f"{name}-partial_{part}"] = Variant(name, rope, seed=5)
        rope = _rope("linear", factor=2.0, partial_rotary_factor=0.25)
        found[f"{name}-linear"] = Variant(name, rope)
    return found


def _yarns(name: str) -> dict[str, Variant]:
    # transformers finds no width for Mixtral's YaRN where the file names none.
    said = {"head_dim": 16} if name == "mixtral" else {}
    turns: dict[str, dict[str, Any]] = {
        "": {},
        "_untruncated": {"truncate": False},
        "_betas": {"beta_fast": 16.0, "beta_slow": 2.0},
        "_mscale": {"mscale": 1.0, "mscale_all_dim": 0.6},
        "_mscale_all": {"mscale_all_dim": 0.8},
        "_top_mscale": {"mscale": 0.7},
        "_attention": {"attention_factor": 1.3},
        # The factor is the file's even where it is not the context's share of the known one.
        "_short": {"factor": 1.0},
    }
    found = {
        f"{name}-yarn{label}": Variant(name, _rope("yarn", **_YARN | more) | said)
        for label, more in turns.items()
    }
    # The words of older files; YaRN then begins where the config's positions end.
    old = {"rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    context = {"max_position_embeddings": 64}
    found[f"{name}-yarn_old"] = Variant(name, context | said, {"rope_parameters": None} | old)
    return found


def _windows() -> dict[str, Variant]:
    slides = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}
    found = {
        f"{name}-windows": Variant(name, slides, {}, "sliding_window", "sliding_window")
        for name in ("qwen2", "qwen3", "qwen3_moe", "smollm3")
    }
    window = {"sliding_window": 16}
    found["mixtral-window"] = Variant("mixtral", window, {}, "sliding_window", "sliding_window")
    off = {"use_sliding_window": False, "sliding_window": 16}
    for name in ("qwen2", "qwen3", "qwen3_moe"):
        found[f"{name}-window_off"] = Variant(name, off)
    for name in ("gemma3_text", "gpt_oss"):
        for size in (1, 5, 64, 300):
            found[f"{name}-window_{size}"] = Variant(name, {"sliding_window": size})
        slide = {"layer_types": ["sliding_attention"] * 8}
        found[f"{name}-all_slide"] = Variant(name, slide)
        found[f"{name}-none_slides"] = Variant(name, {"layer_types": ["full_attention"] * 8})
    # What a gpt-oss config means that does not say how positions turn.
    said = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0}
    said |= {"beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096}
    unsaid = {"rope_parameters": None, "num_hidden_layers": 2}
    found["gpt_oss-rope_unsaid-two_layers"] = Variant(
        "gpt_oss",
        {"rope_parameters": said, "num_hidden_layers": 2, "layer_types": None},
        unsaid,
    )
    for name in _DELTA:
        found[f"{name}-all_full"] = Variant(name, {"layer_types": ["full_attention"] * 8})
        found[f"{name}-all_linear"] = Variant(name, {"layer_types": ["linear_attention"] * 8})
    for every in (1, 2, 3, 20):
        intervals = {"no_rope_layer_interval": every, "no_rope_layers": None}
        found[f"smollm3-no_rope_{every}"] = Variant("smollm3", intervals)
    mixed = {"no_rope_layers": [0, 0, 1, 1, 1, 0, 1, 0]}
    found["smollm3-no_rope_list"] = Variant("smollm3", mixed)
    return found


def _experts() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    counts = {"mixtral": 4, "gpt_oss": 4}
    routed = ("mixtral", "qwen3_moe", "qwen3_next", "qwen3_5_moe", "gpt_oss", *_LATENT)
    for name in routed:
        free = {"n_group": 1, "topk_group": 1} if name in _LATENT else {}
        for used in (1, counts.get(name, 8)):
            changes = {"num_experts_per_tok": used, **free}
            found[f"{name}-uses_{used}"] = Variant(name, changes)
    for name in ("qwen3_moe", "qwen3_next"):
        for step in (2, 3):
            sparse: dict[str, Any] = {"decoder_sparse_step": step, "mlp_only_layers": []}
            found[f"{name}-step_{step}"] = Variant(name, sparse)
        found[f"{name}-dense_some"] = Variant(name, {"mlp_only_layers": [0, 3, 7]})
    for flag in (True, False):
        for name in ("qwen3_moe", "qwen3_next", "deepseek_v3"):
            found[f"{name}-normed_{flag}"] = Variant(name, {"norm_topk_prob": flag})
    normed = {"norm_topk_prob": True}
    found["deepseek_v2-normed"] = Variant(
        "deepseek_v2", normed, {}, "config_field", "norm_topk_prob"
    )
    for name in _LATENT:
        for count in (0, 2):
            found[f"{name}-dense_{count}"] = Variant(name, {"first_k_dense_replace": count})
        found[f"{name}-all_dense"] = Variant(name, {"first_k_dense_replace": 8})
        found[f"{name}-two_shared"] = Variant(name, {"n_shared_experts": 2})
        found[f"{name}-scale"] = Variant(name, {"routed_scaling_factor": 16.0})
        rank = None if name == "deepseek_v3" else 40
        found[f"{name}-rank"] = Variant(name, {"q_lora_rank": rank})
        found[f"{name}-freq"] = Variant(
            name, {}, {"moe_layer_freq": 2}, "config_field", "moe_layer_freq"
        )
        found[f"{name}-scores"] = Variant(
            name, {}, {"scoring_func": "tanh"}, "config_field", "scoring_func"
        )
        found[f"{name}-wide_values"] = Variant(name, {"v_head_dim": 40})
        bias = {"attention_bias": True}
        found[f"{name}-bias"] = Variant(name, bias, {}, "config_field", "attention_bias")
    limited = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
    found["deepseek_v2-groups"] = Variant("deepseek_v2", limited)
    alone = {"n_group": 8, "topk_group": 3}
    found["deepseek_v2-single_groups"] = Variant("deepseek_v2", limited | alone)
    one_best = {"n_group": 2, "topk_group": 1}
    found["deepseek_v3-groups"] = Variant("deepseek_v3", one_best)
    found["deepseek_v3-one_group"] = Variant("deepseek_v3", {"n_group": 1, "topk_group": 1})
    single = {"n_group": 8, "topk_group": 2}
    found["deepseek_v3-single_groups"] = Variant(
        "deepseek_v3", single, {}, "config_field", "n_group"
    )
    found["deepseek_v3-halves"] = Variant("deepseek_v3", {"rope_interleave": False})
    return found


def _rest() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in ("llama", "granite", "smollm3", "qwen3", "qwen3_moe"):
        bias = {"attention_bias": True}
        found[f"{name}-bias"] = Variant(name, bias, {}, "config_field", "attention_bias")
    # All four projections have one, and no other matrix.
    found["olmo2-bias"] = Variant("olmo2", {"attention_bias": True})
    for name in ("llama", "granite", "smollm3"):
        found[f"{name}-mlp_bias"] = Variant(
            name, {"mlp_bias": True}, {}, "config_field", "mlp_bias"
        )
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        found[f"gemma3_text-{cap}"] = Variant("gemma3_text", {cap: 2.0}, {}, "config_field", cap)
    both = {"use_bidirectional_attention": True}
    found["gemma3_text-both_ways"] = Variant(
        "gemma3_text", both, {}, "config_field", "use_bidirectional_attention"
    )
    found["gemma3_text-scalar"] = Variant("gemma3_text", {"query_pre_attn_scalar": 7})
    for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
        found[f"granite-{key}"] = Variant("granite", {key: 3.0})
        found[f"llama-{key}"] = Variant("llama", {}, {key: 3.0}, "config_field", key)
    found["granite-attention"] = Variant("granite", {"attention_multiplier": 0.03})
    alpha = {"swiglu_limit": 1.0}
    found["gpt_oss-limit"] = Variant("gpt_oss", alpha)
    for name in _DELTA:
        same = {"linear_num_value_heads": 2, "linear_key_head_dim": 8}
        found[f"{name}-equal_heads"] = Variant(name, same)
        key = "linear_conv_kernel_dim"
        found[f"{name}-kernel"] = Variant(name, {key: 2})
        found[f"{name}-kernel_one"] = Variant(name, {key: 1}, {}, "config_field", key)
    return found


VARIANTS = _shared() | _ropes() | _windows() | _experts() | _rest()
