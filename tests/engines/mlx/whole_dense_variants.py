"""Configs of dense families that mlx_lm alone defines, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.held_whole import WholeVariant

__all__ = ["REFUSED", "VARIANTS"]

_THETA: Final = {"rope_theta": 20000.0}
# What other families say in other words.
_OTHER_WORDS: Final[dict[str, Any]] = {
    "hidden_size": None,
    "intermediate_size": None,
    "max_position_embeddings": None,
    "num_attention_heads": None,
    "num_hidden_layers": None,
    "num_key_value_heads": None,
    "rms_norm_eps": None,
}
_NO_ATTENTION: Final = {"attention": {"no_op": True}, "ffn": {"ffn_mult": 2.0}}
_BLOCKS: Final[list[dict[str, Any]]] = [
    {"attention": {"n_heads_in_group": 2, "no_op": False}, "ffn": {"ffn_mult": 2.0}},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
    _NO_ATTENTION,
    {"attention": {"replace_with_linear": True, "no_op": False}, "ffn": {"ffn_mult": 4.5}},
    {"attention": {"n_heads_in_group": 1}, "ffn": {"replace_with_linear": True}},
    {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 0.5}},
]
_ROPES: Final = {
    "full_attention": {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
_KINDS: Final = ["sliding_attention"] * 3 + ["full_attention", "sliding_attention"] * 2
_OPENELM: Final[dict[str, Any]] = {
    **_OTHER_WORDS,
    "activation_fn_name": "swish",
    "ffn_dim_divisor": 16,
    "ffn_multipliers": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0],
    "ffn_with_glu": True,
    "head_dim": 16,
    "max_context_length": 512,
    "model_dim": 64,
    "normalization_layer_name": "rms_norm",
    "normalize_qk_projections": True,
    "num_gqa_groups": 4,
    "num_kv_heads": [1, 1, 2, 2, 2, 3],
    "num_query_heads": [4, 4, 4, 8, 8, 12],
    "num_transformer_layers": 6,
    "qkv_multipliers": [0.5, 1.0],
    "rope_freq_constant": 20000,
    "rope_max_length": 1024,
    "share_input_output_layers": True,
}

_ALONE: Final = {
    "internlm2": WholeVariant("internlm2", {**_THETA, "bias": False}),
    "minicpm": WholeVariant(
        "minicpm", {**_THETA, "scale_emb": 3, "scale_depth": 1.1, "dim_model_base": 32}
    ),
    "mimo": WholeVariant("mimo", {**_THETA, "attention_bias": True}),
    "openelm": WholeVariant("openelm", _OPENELM),
    "qwen": WholeVariant(
        "qwen",
        {
            "kv_channels": 16,
            "layer_norm_epsilon": 1e-6,
            "no_bias": True,
            "num_key_value_heads": None,
            "rms_norm_eps": None,
            "rotary_emb_base": 10000,
            "rotary_pct": 1.0,
            "scale_attn_weights": True,
            "seq_length": 512,
            "use_dynamic_ntk": True,
            "use_logn_attn": True,
        },
    ),
    "plamo": WholeVariant("plamo", {"n_shared_head": 2, "num_key_value_heads": None}),
    "plamo3": WholeVariant(
        "plamo3",
        {
            **_THETA,
            "head_dim": 16,
            "rope_local_theta": 500.0,
            "sliding_window_pattern": 3,
            "window_size": 16,
        },
        tolerance=1e-3,
    ),
    "baichuan_m1": WholeVariant(
        "baichuan_m1",
        {
            **_THETA,
            "conv_window": 2,
            "num_swa_attention_heads": 8,
            "num_swa_key_value_heads": 4,
            "sliding_window": 16,
            "sliding_window_layers": [1, 3, 4],
        },
    ),
    "talkie": WholeVariant("talkie", {**_THETA, "head_dim": 16, "num_key_value_heads": None}),
    "phi3small": WholeVariant(
        "phi3small",
        {
            "blocksparse_block_size": 32,
            "blocksparse_num_local_blocks": 2,
            "blocksparse_vert_stride": 3,
            "dense_attention_every_n_layers": 2,
            "ff_intermediate_size": 96,
            "gegelu_limit": 1.5,
            "hidden_act": "gegelu",
            "intermediate_size": None,
            "layer_norm_epsilon": 1e-5,
            "mup_attn_multiplier": 1.3,
            "num_hidden_layers": 4,
            "rms_norm_eps": None,
            "rope_embedding_base": 20000,
            "vocab_size": 100352,
        },
        # Of a prompt mlx_lm's layers see later rows, and blocks that lie elsewhere.
        is_stepped=True,
    ),
    "telechat3": WholeVariant("telechat3", _THETA),
    "nanbeige": WholeVariant("nanbeige", _THETA),
    "nemotron-nas": WholeVariant(
        "nemotron-nas",
        {
            **_THETA,
            "block_configs": _BLOCKS,
            "intermediate_size": None,
            "num_key_value_heads": None,
        },
    ),
    "lille-130m": WholeVariant(
        "lille-130m",
        {
            **_OTHER_WORDS,
            **_THETA,
            "block_size": 512,
            "layer_norm_eps": 1e-5,
            "n_embd": 96,
            "n_head": 4,
            "n_kv_heads": 2,
            "n_layer": 6,
        },
    ),
    "xverse": WholeVariant("xverse", {**_THETA, "num_key_value_heads": None}),
    "spark2_5": WholeVariant(
        "spark2_5",
        {
            "head_dim": 16,
            "layer_types": _KINDS[:6],
            "rope_parameters": _ROPES,
            "sliding_window": 16,
        },
        tolerance=1e-4,
    ),
}
# What says how many layers there are, where it is not num_hidden_layers; and lists of each layer.
_LAYERS: Final = {"openelm": "num_transformer_layers", "lille-130m": "n_layer"}
_LISTS: Final = (
    *("block_configs", "ffn_multipliers", "layer_types", "num_kv_heads", "num_query_heads"),
)
_EPSILONS: Final = {
    **dict.fromkeys(_ALONE, "rms_norm_eps"),
    "lille-130m": "layer_norm_eps",
    "phi3small": "layer_norm_epsilon",
    "qwen": "layer_norm_epsilon",
}
# Its ids that are no tokens are those of a whole vocabulary, which takes seconds.
_WHOLE_VOCABULARY: Final = ("phi3small",)
_NO_ACTIVATION: Final = ("lille-130m", "openelm", "plamo", "plamo3", "qwen")


def _with(name: str, fields: dict[str, Any], refused: str = "", field: str = "") -> WholeVariant:
    """Return a variant with other fields; a refused one is refused by the last, or as said."""
    base = _ALONE[name]
    named = (field or list(fields)[-1]) if refused else ""
    return dataclasses.replace(base, fields={**base.fields, **fields}, refused=refused, field=named)


def _refused(name: str, file: dict[str, Any]) -> WholeVariant:
    """Return a variant that is refused by a field of config.json, which mlx_lm may not take."""
    field = next(iter(file))
    return dataclasses.replace(_ALONE[name], file=file, refused="config_field", field=field)


def _shared() -> dict[str, WholeVariant]:
    found: dict[str, WholeVariant] = {}
    for name, base in _ALONE.items():
        lists = {key: base.fields[key][2:4] for key in _LISTS if key in base.fields}
        few = {_LAYERS.get(name, "num_hidden_layers"): 2, **lists, "vocab_size": 259}
        if name not in _WHOLE_VOCABULARY:
            found[f"{name}-two_layers"] = _with(name, few)
        found[f"{name}-as_it_is"] = base
        found[f"{name}-unknown"] = _refused(name, {"rows_twisted": 3})
        if name in _EPSILONS:
            found[f"{name}-epsilon"] = _with(name, {_EPSILONS[name]: 0.3})
        if name not in _NO_ACTIVATION:
            found[f"{name}-activation"] = _refused(name, {"hidden_act": "relu"})
        if name not in ("internlm2", "openelm", "plamo3", "spark2_5"):
            both = {"type": "dynamic", "rope_type": "dynamic"}
            dynamic = {"rope_scaling": {**both, "factor": 2.0}}
            found[f"{name}-dynamic"] = _with(name, dynamic, "rope_scaling", "dynamic")
    for name in ("internlm2", "mimo", "telechat3", "nanbeige", "nemotron-nas", "xverse"):
        found[f"{name}-tied"] = _with(name, {"tie_word_embeddings": True})
        linear = {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}}
        found[f"{name}-linear"] = _with(name, linear)
    for name in ("internlm2", "mimo", "minicpm", "telechat3", "nanbeige", "spark2_5"):
        found[f"{name}-one_kv_head"] = _with(name, {"num_key_value_heads": 1})
    for name in ("telechat3", "nanbeige", "nemotron-nas", "spark2_5", "xverse"):
        for key in ("attention_bias", "mlp_bias"):
            found[f"{name}-{key}"] = _with(name, {key: True})
    for name in ("telechat3", "nanbeige"):
        found[f"{name}-wide_head"] = _with(name, {"head_dim": 24})
    return found


def _own() -> dict[str, WholeVariant]:
    found: dict[str, WholeVariant] = {}
    found["internlm2-bias"] = _with("internlm2", {"bias": True})
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    found["internlm2-dynamic"] = _with("internlm2", dynamic)
    found["minicpm-base"] = _with("minicpm", {"dim_model_base": 16, "scale_emb": 7})
    released = {
        "head_dim": 16,
        "max_window_layers": 6,
        "num_nextn_predict_layers": 1,
        "sliding_window": 32,
        "use_mrope": False,
        "use_sliding_window": False,
    }
    found["mimo-released"] = _with("mimo", released)
    found["mimo-attention_bias"] = _with("mimo", {"attention_bias": False}, "config_field")
    apart = {"share_input_output_layers": False}
    found["openelm-untied"] = _with("openelm", apart)
    found["openelm-no_norms"] = _with("openelm", {"normalize_qk_projections": False})
    found["openelm-no_gate"] = _with("openelm", {"ffn_with_glu": False}, "config_field")
    found["openelm-odd_heads"] = _with(
        "openelm", {"num_kv_heads": [1, 1, 3, 2, 2, 3]}, "config_field"
    )
    found["qwen-biases"] = _with("qwen", {"no_bias": False})
    found["qwen-trained_as_long"] = _with("qwen", {"seq_length": 256})
    found["qwen-longer"] = _with("qwen", {"seq_length": 255}, "rope_scaling", "--context 255")
    found["qwen-untold"] = _with("qwen", {"seq_length": None}, "config_field", "seq_length")
    plain = {"seq_length": 256, "use_dynamic_ntk": False, "use_logn_attn": False}
    found["qwen-trained_shorter"] = _with("qwen", plain)
    found["qwen-kv_channels"] = _with("qwen", {"kv_channels": 24}, "config_field")
    like = {"num_swa_attention_heads": None, "num_swa_key_value_heads": None}
    found["baichuan_m1-heads_alike"] = _with("baichuan_m1", like)
    found["baichuan_m1-none_slides"] = _with("baichuan_m1", {"sliding_window_layers": []})
    found["baichuan_m1-no_numbers"] = _refused("baichuan_m1", {"sliding_window_layers": "all"})
    found["baichuan_m1-conv_window"] = _refused("baichuan_m1", {"conv_window": 3})
    found["talkie-wide_head"] = _with("talkie", {"head_dim": 24})
    tied = {"tie_word_embeddings": True}
    found["talkie-tied"] = _refused("talkie", tied)
    found["phi3small-wider_blocks"] = _with(
        "phi3small", {"blocksparse_block_size": 64, "blocksparse_num_local_blocks": 1}
    )
    found["phi3small-third_full"] = _refused("phi3small", {"dense_attention_every_n_layers": 3})
    found["phi3small-few_tokens"] = _refused("phi3small", {"vocab_size": 100351})
    found["plamo3-window"] = _with("plamo3", {"sliding_window": 9})
    found["plamo3-usual_kinds"] = _with("plamo3", {"sliding_window_pattern": None})
    found["plamo3-untied"] = _with("plamo3", {"tie_word_embeddings": False})
    found["plamo3-linear_type"] = _refused("plamo3", {"linear_type": "fp8"})
    found["plamo-n_shared_head"] = _with("plamo", {"n_shared_head": 4})
    found["nanbeige-num_loops"] = _with("nanbeige", {"num_loops": 2}, "config_field")
    found["nanbeige-loss"] = _with(
        "nanbeige", {"loop_loss_weights": [0.5]}, "config_field", "loop_loss_weights"
    )
    sparse = [{**_BLOCKS[0], "attention": {"n_heads_in_group": 2, "window_length": 8}}]
    found["nemotron-nas-window"] = _with(
        "nemotron-nas", {"block_configs": sparse + _BLOCKS[1:]}, "config_field", "window_length"
    )
    found["nemotron-nas-too_few"] = _refused("nemotron-nas", {"block_configs": _BLOCKS[1:]})
    found["spark2_5-gates"] = _refused("spark2_5", {"headwise_attn_output_gate": False})
    found["spark2_5-untied"] = _with("spark2_5", {"tie_word_embeddings": False})
    return found


_ALL: Final = _shared() | _own()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
