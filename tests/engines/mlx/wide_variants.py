"""Tiny families that only mlx_lm and transformers have, and variants of their configs, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.engines.torch.variants import Variant

_WINDOW: Final = 16
_PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}
_EXPERTS: Final = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_FOURTH_FULL: Final = (["sliding_attention"] * 3 + ["full_attention"]) * 2


def _family(name: str, **fields: object) -> tuple[str, dict[str, Any]]:
    return name, {"rope_parameters": dict(_PLAIN), **fields}


# As `stagelink_conformance.families.FAMILIES` has them.
WIDE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "mistral": _family("mistral", sliding_window=None),
    "phi3": _family("phi3"),
    "starcoder2": _family("starcoder2", hidden_act="gelu", sliding_window=None),
    "gemma": _family("gemma", head_dim=16),
    "gemma2": _family(
        "gemma2",
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=_WINDOW,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=4.0,
    ),
    "cohere": _family("cohere", logit_scale=0.4),
    "cohere2": _family("cohere2", sliding_window=_WINDOW, logit_scale=0.4),
    "glm": _family("glm", head_dim=16),
    "glm4": _family("glm4", head_dim=16),
    "ernie4_5": _family("ernie4_5"),
    "helium": _family("helium", head_dim=16),
    "nemotron": _family("nemotron"),
    "exaone4": _family("exaone4", sliding_window=_WINDOW, layer_types=_FOURTH_FULL),
    "seed_oss": _family("seed_oss", head_dim=16),
    "olmo3": (
        "olmo3",
        {
            "sliding_window": _WINDOW,
            "layer_types": _FOURTH_FULL,
            "rope_parameters": {
                "full_attention": {**_PLAIN, "rope_type": "linear", "factor": 2.0},
                "sliding_attention": dict(_PLAIN),
            },
        },
    ),
    "hunyuan_v1_dense": _family("hunyuan_v1_dense", head_dim=16),
    "stablelm": _family("stablelm"),
    "qwen2_moe": _family("qwen2_moe", **_EXPERTS, shared_expert_intermediate_size=48),
    "olmoe": _family("olmoe", num_experts=8, num_experts_per_tok=2),
    "granitemoe": _family(
        "granitemoe",
        num_local_experts=4,
        num_experts_per_tok=2,
        embedding_multiplier=6.0,
        attention_multiplier=0.2,
        residual_multiplier=0.7,
        logits_scaling=1.7,
    ),
}
_ALWAYS_TIED: Final = ("gemma", "gemma2", "cohere", "cohere2")
# In mlx_lm's layers or in those of transformers heads are as wide as the row, all together.
_ROWS_ARE_HEADS: Final = (
    *("phi3", "starcoder2", "cohere", "cohere2", "helium"),
    *("stablelm", "qwen2_moe", "granitemoe", "olmoe"),
)


def _shared() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name, (_, fields) in WIDE.items():
        found[f"{name}-as_it_is"] = Variant(name)
        kinds = {"layer_types": fields["layer_types"][-2:]} if "layer_types" in fields else {}
        few = {"num_hidden_layers": 2, "vocab_size": 259, **kinds}
        found[f"{name}-two_layers"] = Variant(name, few)
        found[f"{name}-one_kv_head"] = Variant(name, {"num_key_value_heads": 1})
        # A phi3 of transformers 5 says longrope or nothing.
        for kind in ("linear", "dynamic") if name not in ("phi3", "olmo3") else ():
            rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
            refused = ("rope_scaling", "dynamic") if kind == "dynamic" else ("", "")
            found[f"{name}-{kind}"] = Variant(name, {"rope_parameters": rope}, {}, *refused)
        act = {"hidden_act": "relu", "hidden_activation": "relu"}
        found[f"{name}-activation"] = Variant(name, {}, act, "config_field", "hidden_act")
        odd = {"rows_twisted": 3}
        found[f"{name}-unknown"] = Variant(name, {}, odd, "config_field", "rows_twisted")
        if name not in _ALWAYS_TIED:
            found[f"{name}-tied"] = Variant(name, {"tie_word_embeddings": True})
            found[f"{name}-untied"] = Variant(name, {"tie_word_embeddings": False})
        if name not in _ROWS_ARE_HEADS:
            found[f"{name}-wide_head"] = Variant(name, {"head_dim": 24})
        biases = ("attention_bias", "attention_out_bias", "mlp_bias", "use_bias")
        for key in biases if name not in ("starcoder2", "phi3") else ():
            if key in _TAKEN.get(name, ()):
                found[f"{name}-{key}"] = Variant(name, {key: True})
    return found


# Which biases a family's config can say.
_TAKEN: Final = {
    "cohere": ("attention_bias",),
    "cohere2": ("attention_bias",),
    "glm": ("attention_bias",),
    "glm4": ("attention_bias",),
    "helium": ("attention_bias", "mlp_bias"),
    "ernie4_5": ("use_bias",),
    "nemotron": ("attention_bias", "mlp_bias"),
    "olmo3": ("attention_bias",),
    "hunyuan_v1_dense": ("attention_bias",),
    "olmoe": ("attention_bias",),
    "granitemoe": ("attention_bias",),
    "seed_oss": ("attention_bias", "attention_out_bias", "mlp_bias"),
}


# Words of released files that transformers does not write itself.
_RELEASED: Final[dict[str, dict[str, Any]]] = {
    "phi3": {"attention_bias": False, "auto_map": {"AutoConfig": "a.B"}, "rope_scaling": None},
    "starcoder2": {
        "activation_function": "gelu",
        "attention_softmax_in_fp32": True,
        "mlp_type": "default",
        "norm_type": "layer_norm",
        "scale_attn_weights": True,
    },
    "cohere2": {
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_gated_activation": True,
        "use_parallel_block": True,
    },
    "ernie4_5": {"compression_ratio": 1.0},
}


def _own() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in ("mistral", "phi3", "starcoder2"):
        found[f"{name}-window"] = Variant(name, {"sliding_window": _WINDOW})
    for name in ("gemma2", "cohere2", "exaone4", "olmo3"):
        order = ["full_attention"] * 2 + ["sliding_attention"] * 5 + ["full_attention"]
        found[f"{name}-order"] = Variant(name, {"layer_types": order})
        found[f"{name}-none_slides"] = Variant(name, {"layer_types": ["full_attention"] * 8})
        odd = {"layer_types": ["chunked_attention"] * 8}
        found[f"{name}-chunked"] = Variant(name, {}, odd, "layer_types", "layer_types")
    for name in ("phi3", "glm", "glm4", "nemotron", "stablelm"):
        for share in (0.25, 1.0):
            rope = {**_PLAIN, "partial_rotary_factor": share}
            found[f"{name}-share_{share}"] = Variant(name, {"rope_parameters": rope})
    old = {"rope_parameters": None, "rope_theta": 10000.0}
    linear = {"rope_scaling": {"type": "linear", "factor": 2.0}}
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    for name in ("mistral", "seed_oss"):
        found[f"{name}-linear_old"] = Variant(name, {"rope_parameters": rope}, old | linear)
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    kinds = {"full_attention": {**scaled, "rope_theta": 500000.0}}
    kinds["sliding_attention"] = {"rope_type": "default", "rope_theta": 500000.0}
    flat = {"rope_parameters": None, "rope_theta": 500000.0, "rope_scaling": scaled}
    found["olmo3-yarn_old"] = Variant("olmo3", {"rope_parameters": kinds}, flat)
    found["olmo3-theta_old"] = Variant("olmo3", {}, old, "config_field", "rope_theta")
    found["gemma-gelu"] = Variant("gemma", {}, {"hidden_act": "gelu"})
    for name, words in _RELEASED.items():
        found[f"{name}-released"] = Variant(name, {}, words)
    two = {"rope_theta": 10000.0}
    found["mistral-two_thetas"] = Variant("mistral", {}, two, "config_field", "rope_theta")
    lost = {"rope_parameters": None}
    found["mistral-no_theta"] = Variant("mistral", {}, lost, "config_field", "rope_theta")
    long = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "rope_type": "longrope"}
    rope = {**_PLAIN, **long, "original_max_position_embeddings": 64}
    found["phi3-longrope"] = Variant(
        "phi3",
        {},
        {"rope_parameters": rope, "original_max_position_embeddings": 64},
        "rope_scaling",
        "rope_parameters",
    )
    tanh = {"hidden_act": "gelu_pytorch_tanh"}
    found["starcoder2-tanh-two_layers"] = Variant("starcoder2", tanh | {"num_hidden_layers": 2})
    found["starcoder2-tanh"] = Variant("starcoder2", tanh)
    bare = {"use_bias": False}
    found["starcoder2-use_bias"] = Variant("starcoder2", bare, {}, "config_field", "use_bias")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        found[f"gemma2-{key}"] = Variant("gemma2", {key: 2.0})
        found[f"gemma2-{key}_off"] = Variant("gemma2", {key: None}, {}, "config_field", key)
    return found


def _rest() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for key in ("use_qkv_bias", "qk_layernorm", "use_parallel_residual"):
        found[f"stablelm-{key}"] = Variant("stablelm", {key: True})
    for key in ("embedding_multiplier", "attention_multiplier", "residual_multiplier"):
        found[f"granitemoe-{key}"] = Variant("granitemoe", {key: 0.4})
    found["granitemoe-logits_scaling"] = Variant("granitemoe", {"logits_scaling": 3.0})
    for name in ("qwen2_moe", "olmoe", "granitemoe"):
        for used in (1, 4):
            found[f"{name}-uses_{used}"] = Variant(name, {"num_experts_per_tok": used})
    found["olmoe-norm_topk_prob"] = Variant("olmoe", {"norm_topk_prob": True})
    found["olmoe-clip_qkv"] = Variant("olmoe", {"clip_qkv": 0.5}, {}, "config_field", "clip_qkv")
    for key, value in (
        ("norm_topk_prob", True),
        ("decoder_sparse_step", 2),
        ("mlp_only_layers", [1]),
    ):
        found[f"qwen2_moe-{key}"] = Variant("qwen2_moe", {key: value})
    bare = {"qkv_bias": False}
    found["qwen2_moe-qkv_bias"] = Variant("qwen2_moe", bare, {}, "config_field", "qkv_bias")
    slides = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}
    found["qwen2_moe-window"] = Variant(
        "qwen2_moe", {}, slides, "config_field", "use_sliding_window|max_window_layers"
    )
    alone = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": None}
    found["qwen2_moe-window_alone"] = Variant(
        "qwen2_moe", {}, alone, "config_field", "use_sliding_window"
    )
    rope = {**_PLAIN, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}
    found["hunyuan_v1_dense-alpha"] = Variant("hunyuan_v1_dense", {"rope_parameters": rope})
    old = {"rope_parameters": None, "rope_theta": 30000.0}
    said = {"rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}}
    found["hunyuan_v1_dense-alpha_old"] = Variant(
        "hunyuan_v1_dense", {"rope_parameters": rope}, old | said
    )
    found["cohere-use_qk_norm"] = Variant("cohere", {"use_qk_norm": True})
    found["exaone4-no_window"] = Variant(
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 8}
    )
    for name in _ALWAYS_TIED:
        apart = {"tie_word_embeddings": False}
        found[f"{name}-untied"] = Variant(name, apart, {}, "config_field", "tie_word_embeddings")
    return found


_ALL: Final = _shared() | _own() | _rest()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
