"""Configs of released models of the families that came last are understood, field by field.

No layer is built: what they compute is held on tiny models (test_wide.py and test_whole.py).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from stagelink.engine import ConfigError, read_family
from stagelink_mlx.configs.arguments import check_family, model_arguments
from stagelink_mlx.configs.wide import understood

_DBRX: dict[str, Any] = {
    "architectures": ["DbrxForCausalLM"],
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
    "d_model": 6144,
    "emb_pdrop": 0.0,
    "ffn_config": {
        "ffn_hidden_size": 10752,
        "model_type": "",
        "moe_jitter_eps": 0.01,
        "moe_loss_weight": 0.05,
        "moe_num_experts": 16,
        "moe_top_k": 4,
    },
    "initializer_range": 0.02,
    "max_seq_len": 32768,
    "model_type": "dbrx",
    "n_heads": 48,
    "n_layers": 40,
    "output_router_logits": False,
    "resid_pdrop": 0.0,
    "router_aux_loss_coef": 0.05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 100352,
}
_MINIMAX: dict[str, Any] = {
    "attention_output_gate": False,
    "dense_intermediate_size": 12288,
    "head_dim": 128,
    "hidden_act": "swigluoai",
    "hidden_size": 6144,
    "intermediate_size": 3072,
    "max_position_embeddings": 1048576,
    "moe_layer_freq": [0] * 3 + [1] * 57,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 60,
    "num_key_value_heads": 4,
    "num_local_experts": 128,
    "num_mtp_modules": 7,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "qk_norm_type": "per_head",
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "rotary_dim": 64,
    "routed_scaling_factor": 2.0,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 3072,
    "sparse_attention_config": {
        "sparse_attention_freq": [0] * 3 + [1] * 57,
        "sparse_block_size": 128,
        "sparse_disable_index_value": [0] * 3 + [1] * 57,
        "sparse_index_dim": 128,
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_num_index_heads": 4,
        "sparse_score_type": "max",
        "sparse_topk_blocks": 16,
        "use_sparse_attention": True,
    },
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "use_gemma_norm": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 200064,
}
_LING: dict[str, Any] = {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "embedding_dropout": 0.0,
    "eos_token_id": 156895,
    "expert_swiglu_limit_list": None,
    "first_k_dense_replace": 1,
    "gated_attention_proj_granularity_type": "head_wise",
    "group_norm_size": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "initializer_range": 0.02,
    "intermediate_size": 4608,
    "kda_lower_bound": -5,
    "kda_safe_gate": True,
    "kv_lora_rank": 512,
    "layer_group_size": 4,
    "linear_silu": True,
    "max_position_embeddings": 131072,
    "max_window_layers": 20,
    "model_type": "bailing_hybrid",
    "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": True,
    "moe_shared_expert_intermediate_size": 512,
    "mtp_loss_scaling_factor": 0,
    "mtp_use_kda": False,
    "n_group": 8,
    "no_kda_lora": True,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "num_kv_heads_for_linear_attn": 0,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "output_router_logits": False,
    "q_lora_rank": 256,
    "qk_head_dim": 192,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_interleave": True,
    "rope_scaling": None,
    "rope_theta": 6000000,
    "routed_scaling_factor": 2.5,
    "router_dtype": "fp32",
    "scale_router_input": False,
    "score_function": "sigmoid",
    "share_expert_swiglu_limit_list": None,
    "short_conv_kernel_size": 4,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "use_kda_lora": False,
    "use_mla_nope": False,
    "use_qk_norm": True,
    "use_qkv_bias": False,
    "v_head_dim": 128,
    "value_norm": False,
    "vocab_size": 157184,
}
# The late layers of the larger one bound what its experts make.
_LING_FLASH: dict[str, Any] = {
    "expert_swiglu_limit_list": [0] * 35 + [4] * 7,
    "layer_group_size": 6,
    "num_hidden_layers": 42,
    "q_lora_rank": None,
    "share_expert_swiglu_limit_list": [0] * 34 + [5] * 6 + [7] * 2,
}
_VISION = {"vision_config": {"hidden_size": 32}, "architectures": ["AnyForConditionalGeneration"]}
_RELEASED = {
    "dbrx-instruct": _DBRX,
    "MiniMax-M3": {"model_type": "minimax_m3_vl", "text_config": _MINIMAX, **_VISION},
    "Ling-3.0-tiny": _LING,
    "Ling-3.0-flash": {**_LING, **_LING_FLASH},
}


@pytest.mark.parametrize("name", _RELEASED)
def test_a_released_config_is_understood_and_no_field_is_left(name: str) -> None:
    family = _understood(_RELEASED[name])
    module, arguments = model_arguments(family, check_family(family))
    text = getattr(arguments, "text_config", arguments)
    assert module.__name__.startswith("mlx_lm.models.")
    assert family.config["hidden_size"] == getattr(text, "hidden_size", family.width)


def test_layers_of_a_released_minimax_choose_blocks_but_for_the_first() -> None:
    family = _understood(_RELEASED["MiniMax-M3"])
    assert family.layer_kinds == ("full",) * 3 + ("indexed",) * 57


def test_the_last_layer_of_each_group_of_a_released_ling_attends() -> None:
    kinds = _understood(_RELEASED["Ling-3.0-flash"]).layer_kinds
    assert [n for n, kind in enumerate(kinds) if kind == "full"] == [5, 11, 17, 23, 29, 35, 41]


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("dbrx-instruct", "rope_theta", 10000.0),
        ("Ling-3.0-tiny", "use_mla_nope", True),
        ("Ling-3.0-tiny", "router_bias_twisted", True),
    ],
)
def test_a_word_with_another_meaning_is_refused(name: str, word: str, value: object) -> None:
    config = {**_RELEASED[name], word: value}
    with pytest.raises(ConfigError, match=word) as caught:
        _arguments(config)
    assert caught.value.reason == "config_field"


def _arguments(config: dict[str, Any]) -> None:
    family = _understood(config)
    model_arguments(family, check_family(family))


def _understood(config: dict[str, Any]) -> Any:
    text = config.get("text_config", config)
    layers = text.get("num_hidden_layers", text.get("n_layers"))
    names = [f"model.layers.{n}.weight" for n in range(layers)]
    names += ["model.embed_tokens.weight", "lm_head.weight"]
    table: dict[str, Any] = dict.fromkeys(names, SimpleNamespace(shape=(1,)))
    family = read_family(config, tensors=table)
    return understood(family, check_family(family), config)
