"""Configs of families that mlx_lm alone defines and whose layers hand on more than rows, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.held_whole import WholeVariant

__all__ = ["REFUSED", "VARIANTS"]

_ALPHA: Final = {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}
_HUNYUAN: Final = WholeVariant(
    "hunyuan",
    {
        "attention_bias": False,
        "cla_share_factor": 2,
        "moe_topk": 1,
        "num_experts": 4,
        "num_shared_expert": 1,
        "rope_scaling": _ALPHA,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_cla": True,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
    },
)
_AFM: Final = WholeVariant(
    "afm7",
    {
        "hidden_size": None,
        "intermediate_size": None,
        "num_attention_heads": None,
        "num_hidden_layers": None,
        "num_key_value_heads": None,
        "hidden_dim": 64,
        "hidden_dim_scale_factor": 2.0,
        "num_heads": 4,
        "num_kv_heads": 2,
        "num_kv_reuse_layers": 2,
        "num_layers": 6,
        "rope_theta": 20000.0,
    },
)
_RWKV: Final = WholeVariant(
    "rwkv7",
    {
        "a_low_rank_dim": 8,
        "decay_low_rank_dim": 8,
        "gate_low_rank_dim": 16,
        "head_dim": 16,
        "norm_eps": 1e-5,
        "num_attention_heads": None,
        "num_key_value_heads": None,
        "rms_norm_eps": None,
        "v_low_rank_dim": 8,
    },
    is_stacked=True,
)
_NGRAMS: Final = WholeVariant(
    "longcat_flash_ngram",
    {
        "attention_bias": False,
        "emb_neighbor_num": 5,
        "emb_split_num": 2,
        "expert_ffn_hidden_size": 32,
        "ffn_hidden_size": 96,
        "intermediate_size": None,
        "kv_lora_rank": 32,
        "mla_scale_kv_lora": True,
        "mla_scale_q_lora": True,
        "moe_topk": 4,
        "n_routed_experts": 8,
        "ngram_vocab_size_ratio": 2,
        "num_hidden_layers": None,
        "num_key_value_heads": 4,
        "num_layers": 6,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "rope_theta": 20000.0,
        "routed_scaling_factor": 1.5,
        "v_head_dim": 32,
        "zero_expert_num": 4,
    },
    is_stacked=True,
    latent_epsilon=1e-6,
)
# mlx_lm's words of the sizes, beside those that files have.
_PHIXTRAL: Final = WholeVariant(
    "phi-msft",
    {
        "hidden_size": None,
        "intermediate_size": None,
        "model_dim": 64,
        "num_attention_heads": None,
        "num_experts_per_tok": 2,
        "num_heads": 4,
        "num_hidden_layers": None,
        "num_key_value_heads": None,
        "num_layers": 6,
        "num_local_experts": 4,
        "num_vocab": 256,
        "rms_norm_eps": None,
        "rotary_dim": 8,
    },
    file={"n_embd": 64, "n_head": 4, "n_layer": 6, "n_positions": 512},
    blocks="mlp",
)
_PLAMO2: Final = WholeVariant(
    "plamo2",
    {
        "attention_window_size": 256,
        "hidden_size_per_head": 16,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_num_heads": 6,
        "mamba_step": 3,
    },
    # The ids of 4, 5 and 6 gave 2.0e-5, 1.9e-5 and 3.8e-5.
    tolerance=5e-5,
    is_stacked=True,
)
_LOOPS: Final = WholeVariant(
    "iquestloopcoder",
    {"head_dim": 16, "loop_num": 2, "loop_window_size": 24, "rope_theta": 20000.0},
)
_FAMILIES: Final = (_HUNYUAN, _AFM, _RWKV, _NGRAMS, _PHIXTRAL, _PLAMO2, _LOOPS)
_BASES: Final = {one.module: one for one in _FAMILIES}


def _with(name: str, fields: dict[str, Any], **other: Any) -> WholeVariant:
    base = _BASES[name]
    file = {**base.file, **other.pop("file", {})}
    return dataclasses.replace(base, fields={**base.fields, **fields}, file=file, **other)


def _refused(name: str, fields: dict[str, Any], field: str = "") -> WholeVariant:
    return _with(name, {}, file=fields, refused="config_field", field=field or next(iter(fields)))


# What the released files say beside what the layers read, as far as it means anything.
_HUNYUAN_WORDS: Final = {
    "add_classification_head": False,
    "attention_head_dim": 16,
    "capacity_factor": 1.0,
    "class_num": 0,
    "dense_list": [64, 0],
    "hidden_act": "silu",
    "kv_lora_rank": None,
    "mask_init_id": 12,
    "mlp_bias": False,
    "moe_drop_tokens": False,
    "moe_random_routing_dropped_token": False,
    "norm_topk_prob": True,
    "norm_type": "rms",
    "org_vocab_size": 256,
    "pad_id": 0,
    "pool_type": "last",
    "position_embedding_xdrope": False,
    "text_end_id": 7,
    "text_start_id": 6,
    "use_mla": False,
    "use_rotary_pos_emb": True,
}
_RWKV_WORDS: Final = {
    "attn": None,
    "attn_mode": "chunk",
    "fuse_cross_entropy": True,
    "fuse_norm": False,
    "hidden_act": "sqrelu",
    "hidden_ratio": 2.0,
    "norm_bias": True,
    "norm_first": True,
    "num_heads": 4,
    "value_dim": [64] * 6,
}


def _hunyuan() -> dict[str, WholeVariant]:
    found = {"as_it_is": _HUNYUAN, "released": _with("hunyuan", {}, file=_HUNYUAN_WORDS)}
    for name, fields in {
        "thirds": {"cla_share_factor": 3},
        "apart": {"use_cla": False},
        "two_layers": {"num_hidden_layers": 2},
        "one_key_head": {"num_key_value_heads": 1},
        "biases": {"attention_bias": True},
        "bare_heads": {"use_qk_norm": False},
        "no_shared": {"use_mixed_mlp_moe": False},
        "wider_shared": {"num_shared_expert": [1, 2, 1, 2, 1, 2]},
        "narrow_experts": {"moe_intermediate_size": [32, 64] * 3},
        "dense": {"num_experts": 1},
        "epsilon": {"rms_norm_eps": 0.3},
    }.items():
        found[name] = _with("hunyuan", fields)
    found["quantized"] = _with("hunyuan", {}, bits=4)
    for name, fields in {
        "more_used": {"moe_topk": 2},
        "xdrope": {"position_embedding_xdrope": True},
        "head_width": {"attention_head_dim": 32},
        "untied": {"tie_word_embeddings": False},
        "latent": {"kv_lora_rank": 16},
        "unknown": {"rows_twisted": 3},
    }.items():
        found[name] = _refused("hunyuan", fields)
    return {f"hunyuan-{name}": one for name, one in found.items()}


def _afm() -> dict[str, WholeVariant]:
    found = {"as_it_is": _AFM}
    for name, fields in {
        "two_layers": {"num_layers": 2, "num_kv_reuse_layers": 1},
        "none_reused": {"num_kv_reuse_layers": 0},
        "most_reused": {"num_kv_reuse_layers": 5},
        "left_out": {"hidden_dim_scale_factor": None, "rope_theta": None, "rms_norm_eps": None},
        "epsilon": {"rms_norm_eps": 0.3},
    }.items():
        found[name] = _with("afm7", fields)
    # Keys are rounded to 255 values: with some seeds one of them falls on another side.
    found["one_key_head"] = _with("afm7", {"num_kv_heads": 1}, seed=5)
    for name, fields in {
        "untied": {"tie_word_embeddings": False},
        "scale": {"hidden_dim_scale_factor": -1},
        "unknown": {"rows_twisted": 3},
    }.items():
        found[name] = _refused("afm7", fields)
    return {f"afm7-{name}": one for name, one in found.items()}


def _rwkv() -> dict[str, WholeVariant]:
    found = {"as_it_is": _RWKV, "released": _with("rwkv7", {}, file=_RWKV_WORDS)}
    for name, fields in {
        "two_layers": {"num_hidden_layers": 2},
        "wide_heads": {"head_dim": 32},
        "tied": {"tie_word_embeddings": True},
        "epsilon": {"norm_eps": 0.3},
    }.items():
        found[name] = _with("rwkv7", fields)
    found["quantized"] = _with("rwkv7", _RWKV_QUANTIZED, bits=8, group=64)
    for name, fields in {
        "heads": {"num_heads": 2},
        "values": {"value_dim": [64, 64, 128, 64, 64, 64]},
        "attention": {"attn": {"layers": [1]}},
        "norm_last": {"norm_first": False},
        "activation": {"hidden_act": "relu"},
        "theta": {"rope_theta": 10000.0},
        "unknown": {"rows_twisted": 3},
    }.items():
        found[name] = _refused("rwkv7", fields)
    return {f"rwkv7-{name}": one for name, one in found.items()}


def _ngrams() -> dict[str, WholeVariant]:
    name = "longcat_flash_ngram"
    found = {"as_it_is": _NGRAMS, "quantized": _with(name, {}, bits=4)}
    own = (("model.ngram_embeddings.word_embeddings.", "model.embed_tokens."),)
    found["own_names"] = _with(name, {}, names=own)
    for case, fields in {
        "two_layers": {"num_layers": 2},
        "pairs": {"emb_neighbor_num": 2, "emb_split_num": 1},
        "threes": {"emb_neighbor_num": 3, "emb_split_num": 4},
        "larger_tables": {"ngram_vocab_size_ratio": 7},
    }.items():
        found[case] = _with(name, fields)
    for case, fields in {
        "ends": {"eos_token_id": [2, 3]},
        "no_neighbours": {"emb_neighbor_num": 1},
        "odd_tables": {"emb_split_num": 3},
        "ratio": {"ngram_vocab_size_ratio": 1.5},
        "unknown": {"rows_twisted": 3},
    }.items():
        found[case] = _refused(name, fields)
    return {f"{name}-{case}": one for case, one in found.items()}


def _phixtral() -> dict[str, WholeVariant]:
    name = "phi-msft"
    released = {
        "activation_function": "gelu_new",
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "flash_attn": False,
        "flash_rotary": False,
        "fused_dense": False,
        "img_processor": None,
        "layer_norm_epsilon": 1e-5,
        "n_head_kv": None,
        "n_inner": None,
        "resid_pdrop": 0.1,
        "tie_word_embeddings": False,
    }
    found = {"as_it_is": _PHIXTRAL, "released": _with(name, {}, file=released)}
    found["quantized"] = _with(name, {}, bits=4)
    found["two_layers"] = _with(name, {"num_layers": 2}, file={"n_layer": 2})
    for case, fields in {
        "uses_1": {"num_experts_per_tok": 1},
        "uses_all": {"num_experts_per_tok": 4},
        "turns_all": {"rotary_dim": 16},
    }.items():
        found[case] = _with(name, fields)
    for case, fields in {
        "activation": {"activation_function": "relu"},
        "odd_turn": {"rotary_dim": 7},
        "uses_more": {"num_experts_per_tok": 5},
        "epsilon": {"layer_norm_epsilon": 0.1},
        "key_heads": {"n_head_kv": 2},
        "other_width": {"n_embd": 32},
        "unknown": {"rows_twisted": 3},
    }.items():
        found[case] = _refused(name, fields)
    return {f"phixtral-{case}": one for case, one in found.items()}


def _plamo2() -> dict[str, WholeVariant]:
    released = {
        "eval_attention_n_bit": None,
        "fp8_accum_dtype": None,
        "image_feature_size": None,
        "image_proj_type": "linear",
        "linear_type": "normal",
        "sliding_window": 256,
    }
    found = {"as_it_is": _PLAMO2, "released": _with("plamo2", {}, file=released)}
    found["quantized"] = _with("plamo2", {}, bits=8)
    for case, fields in {
        "two_layers": {"num_hidden_layers": 2, "mamba_step": 2},
        "all_attend": {"mamba_enabled": False},
        "all_see_all": {"full_attention_idx": [1, 4], "attention_window_size": 8},
        "untied": {"tie_word_embeddings": False},
        "epsilon": {"rms_norm_eps": 0.3},
    }.items():
        found[case] = _with("plamo2", fields)
    for case, fields in {
        "theta": {"rope_theta": 50000.0},
        "windows": {"sliding_window": 128},
        "numbers": {"full_attention_idx": "all"},
        "step": {"mamba_step": 1},
        "linear": {"linear_type": "fp8"},
        "unknown": {"rows_twisted": 3},
    }.items():
        found[case] = _refused("plamo2", fields)
    few = {"attention_window_size": 255, "mamba_enabled": False}
    found["longer"] = _with("plamo2", few, refused="rope_scaling", field="--context 255")
    return {f"plamo2-{case}": one for case, one in found.items()}


def _loops() -> dict[str, WholeVariant]:
    name = "iquestloopcoder"
    found = {"as_it_is": _LOOPS, "quantized": _with(name, {}, bits=4)}
    for case, fields in {
        "two_layers": {"num_hidden_layers": 2},
        "wide_window": {"loop_window_size": 300},
        "row_alone": {"loop_window_size": 1},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "tied": {"tie_word_embeddings": True},
        "linear": {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
    }.items():
        found[case] = _with(name, fields)
    for case, fields in {
        "once": {"loop_num": 1},
        "window": {"loop_window_size": 0},
        "unknown": {"rows_twisted": 3},
    }.items():
        found[case] = _refused(name, fields)
    return {f"{name}-{case}": one for case, one in found.items()}


# mlx_lm packs the second matrices by groups of 64 values.
_RWKV_QUANTIZED: Final = {f"{one}_low_rank_dim": 64 for one in ("a", "decay", "gate", "v")}
_ALL: Final = _hunyuan() | _afm() | _rwkv() | _ngrams() | _phixtral() | _plamo2() | _loops()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
