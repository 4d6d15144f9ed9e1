"""Configs of released models whose layers read token ids, as data: the words that they say.

It makes no checkpoint. What is said of pictures and sounds is left out.
"""

from __future__ import annotations

from typing import Any, Final

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"


def _kinds(layers: int) -> list[str]:
    return [_SLIDING if (n + 1) % 5 else _FULL for n in range(layers)]


def _gemma3n(layers: int, shared: int, inner: int) -> dict[str, Any]:
    text = {
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * (layers - 10), "altup_active_idx": 0,
        "altup_coef_clip": 120.0, "altup_correct_scale": True, "altup_lr_multiplier": 1.0,
        "altup_num_inputs": 4, "attention_bias": False, "attention_dropout": 0.0,
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2048, "hidden_size_per_layer_input": 256, "initializer_range": 0.02,
        "intermediate_size": [inner] * layers, "laurel_rank": 64, "layer_types": _kinds(layers),
        "max_position_embeddings": 32768, "model_type": "gemma3n_text", "num_attention_heads": 8,
        "num_hidden_layers": layers, "num_key_value_heads": 2, "num_kv_shared_layers": shared,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
    }  # fmt: skip
    return {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "model_type": "gemma3n",
        "text_config": text,
        "vision_config": {"hidden_size": 2048},
    }


def _gemma4(**sizes: int) -> dict[str, Any]:
    layers = sizes["num_hidden_layers"]
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": False,
        "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": False, "eos_token_id": 1,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 256,
        "initializer_range": 0.02, "layer_types": _kinds(layers),
        "max_position_embeddings": 131072, "model_type": "gemma4_text",
        "moe_intermediate_size": None, "num_attention_heads": 8, "num_experts": None,
        "num_global_key_value_heads": None, "pad_token_id": 0, "rms_norm_eps": 1e-06,
        "rope_parameters": {
            _FULL: {
                "partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional",
            },
            _SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 512, "tie_word_embeddings": True, "top_k_experts": None,
        "use_bidirectional_attention": None, "use_cache": True, "use_double_wide_mlp": True,
        "vocab_size": 262144, "vocab_size_per_layer_input": 262144, **sizes,
    }  # fmt: skip
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": text,
        "vision_config": {"hidden_size": 768},
    }


# Each with the last layer that it can be cut before: the earlier one of the two that last make
# keys, of either kind.
RELEASED_TOKEN_READERS: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "gemma-3n-E2B": (_gemma3n(30, 10, 8192), 18),
    "gemma-3n-E4B": (_gemma3n(35, 15, 16384), 18),
    "gemma-4-E2B": (
        _gemma4(
            hidden_size=1536,
            intermediate_size=6144,
            num_hidden_layers=35,
            num_key_value_heads=1,
            num_kv_shared_layers=20,
        ),
        13,
    ),
}
