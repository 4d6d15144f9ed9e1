"""Variants of the configs of the families of ``late_families.py``, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.engines.mlx.late_families import LATE, PLAIN
from tests.engines.torch.variants import Variant

__all__ = ["REFUSED", "VARIANTS"]

_ATTENTION: Final[dict[str, Any]] = LATE["dbrx"][1]["attn_config"]
_FEED_FORWARD: Final[dict[str, Any]] = LATE["dbrx"][1]["ffn_config"]


def _refused(
    family: str, file: dict[str, Any], field: str, reason: str = "config_field"
) -> Variant:
    return Variant(family, {}, file, reason, field)


def _dbrx() -> dict[str, Variant]:
    found = {
        "two_layers": Variant("dbrx", {"num_hidden_layers": 2, "vocab_size": 259}),
        "as_it_is": Variant("dbrx"),
        "bfloat16_file": Variant("dbrx", stored="bfloat16"),
        "unknown": _refused("dbrx", {"rows_twisted": 3}, "rows_twisted"),
        "other_theta": _refused(
            "dbrx", {"rope_parameters": {"rope_theta": 10000.0}}, "30000", "config_field"
        ),
        "no_theta": _refused("dbrx", {"attn_config": {"kv_n_heads": 2}}, "attn_config.rope_theta"),
    }
    one_head = {"attn_config": {**_ATTENTION, "kv_n_heads": 1}, "num_key_value_heads": 1}
    found["one_kv_head"] = Variant("dbrx", one_head)
    found["wide_bound"] = Variant("dbrx", {"attn_config": {**_ATTENTION, "clip_qkv": 8}})
    found["other_heads"] = _refused("dbrx", {"num_key_value_heads": 1}, "num_key_value_heads")
    for name, more in (
        ("uses_1", {"moe_top_k": 1}),
        ("uses_all", {"moe_top_k": 8}),
        ("shares_as_they_are", {"moe_normalize_expert_weights": None}),
    ):
        found[name] = Variant("dbrx", {"ffn_config": {**_FEED_FORWARD, **more}})
    for key, value in (("clip_qkv", None), ("clip_qkv", -1.0), ("clip_kv", 3.0)):
        said = {"attn_config": {**_ATTENTION, key: value}}
        found[f"{key}_{value}"] = _refused("dbrx", said, f"attn_config.{key}")
    for key, value in (
        ("ffn_act_fn", {"name": "relu"}),
        ("hidden_size", 32),
        ("moe_normalize_expert_weights", 2.0),
        ("moe_top_k", 9),
        ("ffn_hidden_size", 0),
        ("rows_twisted", 1),
    ):
        said = {"ffn_config": {**_FEED_FORWARD, key: value}}
        found[f"ffn_{key}"] = _refused("dbrx", said, f"ffn_config.{key}")
    return {f"dbrx-{name}": one for name, one in found.items()}


_M3: Final = "minimax_m3_vl_text"
_CHOOSES: Final = "minimax_m3_sparse"
# As the released file says it.
_NESTED: Final[dict[str, Any]] = {
    "use_sparse_attention": True,
    "sparse_index_dim": 16,
    "sparse_num_index_heads": 2,
    "sparse_topk_blocks": 4,
    "sparse_block_size": 8,
    "sparse_score_type": "max",
    "sparse_init_block": 0,
    "sparse_local_block": 1,
    "sparse_attention_freq": [0, *[1] * 6, 0],
    "sparse_disable_index_value": [0, *[1] * 6, 0],
}
_RELEASED: Final[dict[str, Any]] = {
    **dict.fromkeys(f"index_{one}" for one in ("n_heads", "head_dim", "block_size")),
    **dict.fromkeys(("index_topk_blocks", "index_local_blocks", "layer_types", "mlp_layer_types")),
    "attention_output_gate": False,
    "hidden_act": "swigluoai",
    "moe_layer_freq": [0, *[1] * 7],
    "n_shared_experts": 1,
    "num_mtp_modules": 7,
    "qk_norm_type": "per_head",
    "scoring_func": "sigmoid",
    "sparse_attention_config": _NESTED,
    "use_gemma_norm": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
}


def _minimax() -> dict[str, Variant]:
    few = {"layer_types": ["full_attention", _CHOOSES], "mlp_layer_types": ["dense", "sparse"]}
    found = {
        "two_layers": Variant(_M3, {"num_hidden_layers": 2, "vocab_size": 259, **few}),
        "as_it_is": Variant(_M3),
        "as_released": Variant(_M3, {}, _RELEASED),
        "all_choose": Variant(_M3, {"layer_types": [_CHOOSES] * 8}),
        "none_chooses": Variant(_M3, {"layer_types": None}),
        "all_dense": Variant(_M3, {"mlp_layer_types": ["dense"] * 8}),
        "unsaid_share": _refused(
            _M3, {"rope_parameters": {"rope_theta": 30000.0}}, "partial_rotary_factor"
        ),
    }
    for key, values in (
        ("index_local_blocks", (0, 3)),
        ("index_topk_blocks", (1, 64)),
        ("index_block_size", (5,)),
        ("index_n_heads", (1, 4)),
        ("num_key_value_heads", (1,)),
        ("num_experts_per_tok", (1, 8)),
        ("tie_word_embeddings", (True,)),
    ):
        for value in values:
            found[f"{key}_{value}"] = Variant(_M3, {key: value})
    for key, value in (
        ("hidden_act", "relu"),
        ("index_local_blocks", 5),
        ("index_head_dim", 8),
        ("index_n_heads", 3),
        ("index_topk_blocks", 0),
        ("rotary_dim", 8),
        ("mlp_layer_types", ["dense"] * 7),
        ("layer_types", ["sliding_attention"] * 8),
        ("use_gemma_norm", False),
        ("attention_output_gate", True),
        ("rows_twisted", 3),
    ):
        found[key] = _refused(_M3, {key: value}, key)
    for key, value in (
        ("sparse_init_block", 1),
        ("sparse_score_type", "mean"),
        ("sparse_disable_index_value", [0] * 8),
        ("rows_twisted", 3),
    ):
        said = {"sparse_attention_config": {**_NESTED, key: value}}
        found[key] = _refused(_M3, said, f"sparse_attention_config.{key}")
    found["moe_layer_freq"] = _refused(_M3, {"moe_layer_freq": [1] * 8}, "mlp_layer_types")
    scaled = {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5}
    dynamic = {"rope_parameters": {**PLAIN, **scaled}}
    found["dynamic"] = _refused(_M3, dynamic, "dynamic", "rope_scaling")
    return {f"minimax_m3-{name}": one for name, one in found.items()}


_LING: Final = "bailing_hybrid"
_LINEAR: Final = "linear_attention"
# Words of the released files.
_LING_RELEASED: Final[dict[str, Any]] = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "expert_swiglu_limit_list": None,
    "gated_attention_proj_granularity_type": "head_wise",
    "group_norm_size": 1,
    "layer_types": None,
    "linear_silu": True,
    "max_window_layers": 20,
    "mlp_layer_types": None,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": 32,
    "mtp_use_kda": False,
    "no_kda_lora": True,
    "num_kv_heads_for_linear_attn": 0,
    "partial_rotary_factor": 0.5,
    "rope_interleave": True,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": 6000000,
    "router_dtype": "fp32",
    "scale_router_input": False,
    "score_function": "sigmoid",
    "share_expert_swiglu_limit_list": [0] * 8,
    "use_kda_lora": False,
    "use_mla_nope": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "value_norm": False,
}


def _ling() -> dict[str, Variant]:
    few = {"layer_types": [_LINEAR, "full_attention"], "first_k_dense_replace": 1}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    found = {
        "two_layers": Variant(_LING, {"num_hidden_layers": 2, "vocab_size": 259, **few}),
        "as_it_is": Variant(_LING),
        "as_released": Variant(_LING, {"rope_parameters": None}, _LING_RELEASED),
        "all_attend": Variant(_LING, {"layer_types": ["full_attention"] * 8}),
        "yarn": Variant(_LING, {"rope_parameters": {**PLAIN, **yarn, "mscale_all_dim": 0.7}}),
        # Then it is taken for the other family of the type, which has other fields.
        "no_architecture": _refused(_LING, {"architectures": None}, "group_norm_size"),
    }
    for key, values in (
        ("q_lora_rank", (None,)),
        ("kda_safe_gate", (False,)),
        ("norm_topk_prob", (False,)),
        ("n_group", (1,)),
        # Norms of latents have another one, which no config says.
        ("rms_norm_eps", (0.01,)),
        ("num_experts_per_tok", (1,)),
        ("first_k_dense_replace", (0, 8)),
    ):
        for value in values:
            more = {"topk_group": 1} if key == "n_group" else {}
            found[f"{key}_{value}"] = Variant(_LING, {key: value, **more})
    for key, value in (
        ("attention_bias", True),
        ("expert_swiglu_limit_list", [4.0]),
        ("gated_attention_proj_granularity_type", "element_wise"),
        ("hidden_act", "relu"),
        ("no_kda_lora", False),
        ("num_key_value_heads", 2),
        ("qk_head_dim", 25),
        ("rope_interleave", False),
        ("rows_twisted", 3),
        ("score_function", "softmax"),
    ):
        found[key] = _refused(_LING, {key: value}, key)
    order = {"layer_types": [_LINEAR] * 2 + ["full_attention"] * 6}
    found["order"] = _refused(_LING, order, "layer_group_size")
    order = {"layer_types": [_LINEAR, "full_attention", "full_attention", _LINEAR] * 2}
    found["other_order"] = _refused(_LING, order, "layer_types", "layer_types")
    left = {"layer_types": None, "layer_group_size": 3}
    found["left_over"] = _refused(_LING, left, "layer_group_size")
    return {f"ling3-{name}": one for name, one in found.items()}


_ALL: Final = _dbrx() | _minimax() | _ling()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
