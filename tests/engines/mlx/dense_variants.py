"""Tiny dense families that mlx_lm and transformers have, and variants of their configs, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.engines.torch.variants import Variant

_PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}
_HALF: Final = {**_PLAIN, "partial_rotary_factor": 0.5}
_LONGER: Final = {
    "rope_type": "yarn",
    "rope_theta": 30000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    # Rows of the tests pass it several times, which the queries' factor sees.
    "original_max_position_embeddings": 64,
    "llama_4_scaling_beta": 0.3,
}


def _family(name: str, **fields: object) -> tuple[str, dict[str, Any]]:
    return name, {"rope_parameters": dict(_PLAIN), **fields}


# As `stagelink_conformance.families.FAMILIES` has them.
DENSE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "gpt2": ("gpt2", {}),
    "gpt_bigcode": ("gpt_bigcode", {"n_inner": 128}),
    "gpt_neox": _family("gpt_neox", rope_parameters=_HALF, intermediate_size=256),
    "gptj": ("gptj", {"rotary_dim": 8}),
    "phi": _family("phi", rope_parameters=_HALF),
    "phi3": _family("phi3"),
    "olmo": _family("olmo"),
    "apertus": _family("apertus"),
    "bitnet": _family("bitnet"),
    "exaone": _family("exaone"),
    "internlm3": _family("internlm3", head_dim=16),
    "ministral3": _family("ministral3", head_dim=16, rope_parameters=_LONGER),
    "nanochat": _family("nanochat"),
    "minicpm3": _family(
        "minicpm3",
        num_key_value_heads=4,
        kv_lora_rank=24,
        q_lora_rank=20,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        scale_emb=3,
        scale_depth=1.1,
        dim_model_base=32,
    ),
    "iquestcoder": _family("iquestcoder", head_dim=16),
    "mellum": (
        "mellum",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "sliding_window": 16,
            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
            "mlp_layer_types": ["sparse"] * 8,
            "rope_parameters": {
                "full_attention": {**_PLAIN, "rope_type": "linear", "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
}
# Fields of the usual tiny model that a family does not have; its config class keeps them anyway.
_GONE: Final[dict[str, dict[str, Any]]] = {
    "gpt2": {"intermediate_size": None, "num_key_value_heads": None},
    "gpt_bigcode": {"intermediate_size": None, "num_key_value_heads": None},
    "gpt_neox": {"num_key_value_heads": None},
    "gptj": {"intermediate_size": None, "num_key_value_heads": None},
}
_OLD_WORDS: Final = ("gpt2", "gpt_bigcode", "gptj")
_ONE_EACH: Final = (*_OLD_WORDS, "gpt_neox", "minicpm3")
_LAYER_NORMS: Final = {"gpt_neox": "layer_norm_eps", "phi": "layer_norm_eps"}
_EPSILONS: Final = {
    **{name: "rms_norm_eps" for name in DENSE if name != "olmo"},
    **dict.fromkeys(_OLD_WORDS, "layer_norm_epsilon"),
    **_LAYER_NORMS,
}

_ALWAYS_TIED: Final = ("gpt2",)
# Its other variants are those of wide_variants.py.
_ELSEWHERE: Final = ("phi3",)
_NEVER_TIED: Final = ("gpt_neox", "gptj", "phi")
_ROPES: Final = [
    name for name, (_, fields) in DENSE.items() if "rope_type" in fields.get("rope_parameters", {})
]


def _of(
    name: str,
    changes: dict[str, Any] | None = None,
    file: dict[str, Any] | None = None,
    *refused: str,
) -> Variant:
    stored = {**_GONE.get(name, {}), **(file or {})}
    return Variant(name, changes or {}, stored, *refused)


def _shared() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name, (_, fields) in DENSE.items():
        if name in _ELSEWHERE:
            continue
        found[f"{name}-as_it_is"] = _of(name)
        kinds = {key: value[-2:] for key, value in fields.items() if key.endswith("layer_types")}
        few = {"num_hidden_layers": 2, "vocab_size": 259, **kinds}
        found[f"{name}-two_layers"] = _of(name, few)
        key = "activation_function" if name in _OLD_WORDS else "hidden_act"
        word = "hidden_act|activation_function"
        found[f"{name}-activation"] = _of(name, {}, {key: "relu"}, "config_field", word)
        odd = {"rows_twisted": 3}
        found[f"{name}-unknown"] = _of(name, {}, odd, "config_field", "rows_twisted")
        if name in _EPSILONS:
            found[f"{name}-epsilon"] = _of(name, {_EPSILONS[name]: 0.3})
        if name not in _ONE_EACH:
            found[f"{name}-one_kv_head"] = _of(name, {"num_key_value_heads": 1})
        if name not in _ALWAYS_TIED + _NEVER_TIED:
            found[f"{name}-tied"] = _of(name, {"tie_word_embeddings": True})
            found[f"{name}-untied"] = _of(name, {"tie_word_embeddings": False})
    for name in (one for one in _ROPES if one not in _ELSEWHERE):
        rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
        if name not in ("ministral3", "gpt_neox", "phi"):
            found[f"{name}-linear"] = _of(name, {"rope_parameters": rope})
        rope = {**rope, "rope_type": "dynamic"}
        refused = ("rope_scaling", "dynamic") if name != "ministral3" else ("config_field", "rope")
        if name == "internlm3":
            found[f"{name}-dynamic"] = _of(name, {"rope_parameters": rope})
        else:
            found[f"{name}-dynamic"] = _of(name, {}, {"rope_parameters": rope}, *refused)
    return found


def _longrope(length: int, **fields: Any) -> dict[str, Any]:
    """Return a LongRoPE for heads of sixteen values, or of eight that turn."""
    pairs = fields.pop("pairs", 8)
    return {
        # Phi-3 says it here, too, and this is what is meant there.
        "original_max_position_embeddings": length,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.2 * n for n in range(pairs)],
            "long_factor": [4.0] * pairs,
            "original_max_position_embeddings": length,
            **fields,
        },
    }


def _positions() -> dict[str, Variant]:
    """Return variants of families that change their positions with the length.

    A stage of the tests takes 256 positions of a model's 512.
    """
    found: dict[str, Variant] = {}
    for name, pairs in (("phi3", 8), ("minicpm3", 4), ("exaone", 8)):
        long = _longrope(256, pairs=pairs)
        found[f"{name}-longrope"] = _of(name, long)
        found[f"{name}-longrope_said"] = _of(
            name, _longrope(256, pairs=pairs, attention_factor=1.3)
        )
        short = _longrope(255, pairs=pairs)
        found[f"{name}-longer"] = _of(name, short, {}, "rope_scaling", "--context 255")
        found[f"{name}-few_factors"] = _of(
            name, {}, _longrope(256, pairs=3), "rope_scaling", "short_factor"
        )
    old = {"rope_parameters": None, "rope_theta": 10000.0, "original_max_position_embeddings": 256}
    long = dict(_longrope(256)["rope_parameters"])
    del long["rope_type"], long["rope_theta"], long["original_max_position_embeddings"]
    scaling = {"rope_scaling": {**long, "type": "longrope"}}
    found["phi3-longrope_old"] = _of("phi3", _longrope(256), old | scaling)
    plain = {**_PLAIN, "short_factor": [1.0] * 8}
    found["exaone-factors"] = _of("exaone", {}, {"rope_parameters": plain}, "config_field", "rope")
    return found


def _own() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in ("gpt2", "gpt_bigcode"):
        rope = {"rope_theta": 10000.0}
        found[f"{name}-rope"] = _of(name, {}, rope, "config_field", "rope_theta")
        plain = {"scale_attn_weights": False}
        found[f"{name}-unscaled"] = _of(name, plain, {}, "config_field", "scale_attn_weights")
    deeper = {"scale_attn_by_inverse_layer_idx": True}
    found["gpt2-by_layer"] = _of("gpt2", deeper, {}, "config_field", "inverse_layer")
    found["gpt2-upcast"] = _of("gpt2", {"reorder_and_upcast_attn": True})
    found["gpt2-wide_block"] = _of("gpt2", {"n_inner": 96}, {}, "config_field", "intermediate_size")
    found["gpt2-released"] = _of(
        "gpt2", {}, {"n_ctx": 512, "task_specific_params": {}, "n_inner": None}
    )
    run = {"inference_runner": 0, "pad_key_length": True, "validate_runner_input": True}
    found["gpt_bigcode-released"] = _of("gpt_bigcode", {}, run)
    found["gpt_bigcode-exact-two_layers"] = _of(
        "gpt_bigcode", {"activation_function": "gelu", "num_hidden_layers": 2}
    )
    words = {"gradient_checkpointing": False, "rotary": True, "scale_attn_weights": True}
    found["gptj-released"] = _of("gptj", {}, words)
    apart = {"tie_word_embeddings": False}
    found["gpt2-untied"] = _of("gpt2", apart, {}, "config_field", "tie_word_embeddings")
    found["gpt_bigcode-a_head_each"] = _of("gpt_bigcode", {"multi_query": False})
    found["gpt_bigcode-usual_block"] = _of("gpt_bigcode", {"n_inner": None})
    found["gpt_neox-one_after_the_other"] = _of("gpt_neox", {"use_parallel_residual": False})
    found["gpt_neox-tanh"] = _of("gpt_neox", {"hidden_act": "gelu_new"})
    for share in (0.25, 1.0):
        rope = {**_PLAIN, "partial_rotary_factor": share}
        found[f"gpt_neox-share_{share}"] = _of("gpt_neox", {"rope_parameters": rope})
        found[f"phi-share_{share}"] = _of("phi", {"rope_parameters": rope})
    old = {"rope_parameters": None, "rotary_pct": 0.5, "rotary_emb_base": 30000}
    old |= {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0}
    found["gpt_neox-released"] = _of("gpt_neox", {}, old)
    bare = {"attention_bias": False}
    found["gpt_neox-attention_bias"] = _of("gpt_neox", bare, {}, "config_field", "attention_bias")
    found["gptj-all_turn"] = _of("gptj", {"rotary_dim": 16})
    found["gptj-odd"] = _of("gptj", {}, {"rotary_dim": 7}, "config_field", "rotary_dim")
    found["phi-qk_layernorm"] = _of("phi", {"qk_layernorm": True}, {}, "config_field", "qk_layer")
    return found


def _newer() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    found["olmo-clip_qkv"] = _of("olmo", {"clip_qkv": 0.5})
    found["olmo-no_bound"] = _of("olmo", {}, {"clip_qkv": "wide"}, "config_field", "clip_qkv")
    found["olmo-attention_bias"] = _of("olmo", {"attention_bias": True})
    found["apertus-attention_bias"] = _of(
        "apertus", {"attention_bias": True}, {}, "config_field", "attention_bias"
    )
    found["apertus-released"] = _of("apertus", {}, {"post_norm": False, "qk_norm": True})
    found["bitnet-attention_bias"] = _of("bitnet", {"attention_bias": True})
    both = {"attention_bias": True, "mlp_bias": True}
    found["internlm3-biases"] = _of("internlm3", both)
    one = {"attention_bias": True}
    found["internlm3-one_bias"] = _of("internlm3", {}, one, "config_field", "attention_bias")
    for name in ("exaone", "iquestcoder"):
        for key in ("attention_bias", "mlp_bias"):
            found[f"{name}-{key}"] = _of(name, {key: True})
    relu = {"activation_function": "relu"}
    found["iquestcoder-other_word"] = _of("iquestcoder", {}, relu, "config_field", "activation_")
    words = {"activation_function": "silu", "layer_norm_epsilon": 1e-5, "embed_dropout": 0.0}
    gone = {"hidden_act": None, "rms_norm_eps": None, "num_hidden_layers": None}
    found["exaone-two_words"] = _of("exaone", {}, {"num_layers": 7}, "config_field", "num_layers")
    del gone["num_hidden_layers"]
    found["exaone-released"] = _of("exaone", {}, words | gone)
    found["ministral3-window"] = _of("ministral3", {"sliding_window": 16})
    found["ministral3-no_beta"] = _of(
        "ministral3", {}, {"rope_parameters": _PLAIN}, "config_field", "rope_parameters"
    )
    dense = {"mlp_layer_types": ["dense"] + ["sparse"] * 7}
    found["mellum-dense_first"] = _of("mellum", {}, dense, "config_field", "mlp_layer_types")
    found["mellum-norm_topk_prob"] = _of("mellum", {"norm_topk_prob": False})
    found["mellum-none_slides"] = _of("mellum", {"layer_types": ["full_attention"] * 8})
    found["nanochat-uncapped"] = _of("nanochat", {"final_logit_softcapping": None})
    found["nanochat-cap"] = _of("nanochat", {"final_logit_softcapping": 2.0})
    found["minicpm3-base"] = _of("minicpm3", {"dim_model_base": 16, "scale_emb": 7})
    found["minicpm3-attention_bias"] = _of("minicpm3", {"attention_bias": True})
    wide = {"v_head_dim": 12}
    found["minicpm3-v_head_dim"] = _of("minicpm3", wide, {}, "config_field", "v_head_dim")
    return found


_ALL: Final = _shared() | _own() | _newer() | _positions()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
