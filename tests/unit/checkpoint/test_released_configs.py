"""Configs as released models have them are understood, and their tensors add up to what is known.

The parameter counts are those that the models' makers publish, in billions.
"""

from __future__ import annotations

import math

import pytest

from stagelink.checkpoint.families.registry import read_family

SHARED = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "use_cache": True, "torch_dtype": "bfloat16"}
THIRD = ["linear_attention"] * 3 + ["full_attention"]

QWEN3_30B = SHARED | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": False, "rope_scaling": None,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_NEXT_80B = SHARED | {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
    "decoder_sparse_step": 1, "full_attention_interval": 4, "head_dim": 256,
    "hidden_size": 2048, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
    "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16,
    "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "partial_rotary_factor": 0.25, "rope_scaling": None,
    "rope_theta": 10000000, "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_5_27B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
    "image_token_id": 248056, "language_model_only": False, "tie_word_embeddings": False,
    "vision_config": {"depth": 27, "hidden_size": 1152},
    "text_config": {
        "attention_bias": False, "attn_output_gate": True, "bos_token_id": 248044,
        "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4,
        "head_dim": 256, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17408,
        "layer_types": THIRD * 16, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
        "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "num_attention_heads": 24,
        "num_hidden_layers": 64, "num_key_value_heads": 4, "output_gate_type": "swish",
        "pad_token_id": None, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default",
        },
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": 248320,
    },
}  # fmt: skip
QWEN3_5_35B = QWEN3_5_27B | {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
    "text_config": QWEN3_5_27B["text_config"] | {
        "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "intermediate_size": None,
        "layer_types": THIRD * 10, "linear_num_value_heads": 32, "num_attention_heads": 16,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "router_aux_loss_coef": 0.001,
    },
}  # fmt: skip
DEEPSEEK_V2_LITE = SHARED | {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
    "attention_bias": False, "auto_map": {"AutoConfig": "configuration_deepseek.X"},
    "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001, "ep_size": 1,
    "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 1408,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6,
    "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
        "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
    "seq_aux": True, "tie_word_embeddings": False, "topk_group": 1, "topk_method": "greedy",
    "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
DEEPSEEK_V3 = DEEPSEEK_V2_LITE | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "topk_group": 4, "topk_method": "noaux_tc", "vocab_size": 129280,
}  # fmt: skip
KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2", "bos_token_id": 163584, "eos_token_id": 163585,
    "first_k_dense_replace": 1, "max_position_embeddings": 131072, "n_group": 1,
    "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0, "rope_theta": 50000.0, "routed_scaling_factor": 2.827,
    "rope_scaling": {
        "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "topk_group": 1, "vocab_size": 163840,
}  # fmt: skip
GPT_OSS_120B = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
    "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
    "output_router_logits": False, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
        "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False,
    },
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "swiglu_limit": 7.0, "tie_word_embeddings": False, "use_cache": True, "vocab_size": 201088,
}  # fmt: skip
GPT_OSS_20B = GPT_OSS_120B | {
    "num_hidden_layers": 24, "num_local_experts": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106],
    "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
}  # fmt: skip
MIXTRAL = SHARED | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
    "vocab_size": 32000,
}  # fmt: skip
SMOLLM3_3B = SHARED | {
    "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "attention_bias": False,
    "bos_token_id": 128000, "eos_token_id": 128012, "pad_token_id": 128004,
    "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
    "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16, "num_hidden_layers": 36,
    "num_key_value_heads": 4, "pretraining_tp": 2, "rope_scaling": None,
    "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False,
    "vocab_size": 128256,
}  # fmt: skip
OLMO2_7B = {
    "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "attention_bias": False,
    "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
    "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": False,
    "vocab_size": 100352,
}  # fmt: skip

# Config, billions of parameters without a drafter, and how exactly they are published.
RELEASED = {
    "Qwen3-30B-A3B": (QWEN3_30B, 30.5, 0.05),
    "Qwen3-Next-80B-A3B": (QWEN3_NEXT_80B, 79.7, 0.1),
    "Qwen3.5-27B": (QWEN3_5_27B, 26.9, 0.2),
    "Qwen3.5-35B-A3B": (QWEN3_5_35B, 34.7, 0.2),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15.7, 0.05),
    "DeepSeek-V3": (DEEPSEEK_V3, 671.0, 0.5),
    "Kimi-K2": (KIMI_K2, 1000.0, 30.0),
    "gpt-oss-120b": (GPT_OSS_120B, 116.83, 0.01),
    "gpt-oss-20b": (GPT_OSS_20B, 20.91, 0.01),
    "gemma-3-4b": (GEMMA3_4B, 3.88, 0.01),
    "Mixtral-8x7B": (MIXTRAL, 46.7, 0.05),
    "SmolLM3-3B": (SMOLLM3_3B, 3.08, 0.01),
    "OLMo-2-7B": (OLMO2_7B, 7.30, 0.01),
}


def billions(shapes):
    return sum(map(math.prod, shapes.values())) / 1e9


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_config_is_understood_and_its_tensors_add_up(name):
    config, published, precision = RELEASED[name]
    family = read_family(config)
    assert billions(family.all_tensors()) == pytest.approx(published, abs=precision)
    # What was understood says the same as the file did.
    assert read_family(family.config | {"eos_token_id": list(family.eos_ids)}).width == family.width


def test_a_type_that_is_another_family_s_in_every_field_is_read_as_that_one():
    kimi = read_family(KIMI_K2)
    assert (kimi.model_type, kimi.drafter_tensors()) == ("deepseek_v3", {})
    pictures = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": KIMI_K2,
    }
    inside = read_family(pictures)
    assert (inside.model_type, inside.prefix) == ("deepseek_v3", "model.language_model.")


def test_drafters_of_released_models_add_up():
    # The published 14 billions have their own embedding and head, which the model shares.
    deepseek = billions(read_family(DEEPSEEK_V3).drafter_tensors())
    assert deepseek == pytest.approx(11.5 + 2 * 129280 * 7168 / 1e9, abs=0.2)
    assert 0.3 < billions(read_family(QWEN3_5_27B).drafter_tensors()) < 0.6


def test_state_of_released_models_is_what_is_known_of_it():
    lite = read_family(DEEPSEEK_V2_LITE).layer_state(5)
    assert lite.bytes_per_position == 1152
    recurrent = read_family(QWEN3_NEXT_80B).layer_state(0)
    conv = 3 * (2 * 16 * 128 + 32 * 128) * 2
    assert recurrent.bytes_fixed == 2 * 1024 * 1024 + conv
    window = read_family(GEMMA3_4B)
    assert [window.layer_kinds.count(one) for one in ("sliding", "full")] == [29, 5]
    assert window.layer_state(0).window == 1024
