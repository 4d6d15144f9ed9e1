"""Families with a recurrence in some layers that the checkpoint's own table has not, as data.

It reads no config; ``configs/wide.py`` and ``configs/hybrid.py`` do. Fields and defaults are those
of the families' config classes in transformers 5.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink_mlx.configs import hybrid as configs
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HYBRID_RECIPES"]

_TIED: Final = {"tie_word_embeddings": True}
_LFM2_WORDS: Final = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
_LFM2_PARTS: Final = tuple(
    (f".feed_forward.{old}.", f".feed_forward.{new}.")
    for old, new in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))
)

# How far time steps may go where nothing bounds them.
_ANY_STEP: Final = {"time_step_limit": ([0.0, math.inf],)}
_STATES: Final = {"linear_attention": "linear", "mamba": "linear"}
_FALCON_FACTORS: Final = (
    *("attention_in", "attention_out", "embedding", "key", "lm_head", "ssm_in", "ssm_out"),
)
_MAMBA: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "body": "backbone",
        "embedding": "embeddings",
        "norm": "norm_f",
        "rope": "",
        "kinds": _STATES,
        "mixer": ("norm", "mixer"),
        "layout": "recurrent",
        "made": frozenset(("num_attention_heads",)),
    }
)
# mlx_lm's modules have the one epsilon that all released files say.
_MAMBA_FIXED: Final = fixed_fields(hidden_act="silu", layer_norm_epsilon=1e-5, rms_norm=True)
_MAMBA_MEANT: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "conv_kernel": 4,
        "expand": 2,
        "state_size": 16,
        "time_step_rank": "auto",
        "tie_word_embeddings": True,
        "use_bias": False,
        "use_conv_bias": True,
    }
)

HYBRID_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "lfm2": Recipe(
            "lfm2",
            fixed_fields(block_use_swiglu=True, use_pos_enc=True, **_TIED),
            meant={
                "conv_L_cache": 3,
                "conv_bias": False,
                "block_auto_adjust_ff_dim": True,
                "block_ffn_dim_multiplier": 1.0,
                "block_multiple_of": 256,
                **_TIED,
            },
            norm="embedding_norm",
            words=_LFM2_WORDS,
            kinds={"conv": "linear"},
            mixer=("operator_norm", "conv"),
            layout="recurrent",
            settle=configs.settle_lfm2,
        ),
        "lfm2_moe": Recipe(
            "lfm2_moe",
            fixed_fields(use_pos_enc=True, **_TIED),
            meant={
                "conv_L_cache": 3,
                "conv_bias": False,
                "num_dense_layers": 2,
                "norm_topk_prob": True,
                "routed_scaling_factor": 1.0,
                "use_expert_bias": True,
                **_TIED,
            },
            norm="embedding_norm",
            words=_LFM2_WORDS,
            kinds={"conv": "linear"},
            mixer=("operator_norm", "conv"),
            layout="recurrent",
            renames=_LFM2_PARTS,
            settle=configs.settle_lfm2,
        ),
        "granitemoehybrid": Recipe(
            "granitemoehybrid",
            fixed_fields(hidden_act="silu", normalization_function=(None, "rmsnorm")),
            meant={
                "attention_bias": False,
                "mamba_conv_bias": True,
                "mamba_d_conv": 4,
                "mamba_d_head": "auto",
                "mamba_expand": 2,
                "mamba_n_groups": 1,
                "mamba_proj_bias": False,
                "mlp_bias": False,
                "num_local_experts": 8,
                "position_embedding_type": None,
                "time_step_limit": None,
            },
            words={"layers_block_type": "layer_types"},
            kinds={"mamba": "linear", "attention": "full", "linear_attention": "linear"},
            kind_words=("layer_types", {"linear": "mamba", "full": "attention"}),
            mixer=("input_layernorm", "mamba"),
            layout="granite_hybrid",
            embedding_scale="embedding_multiplier",
            logits_divisor="logits_scaling",
            settle=configs.settle_granite,
        ),
        "falcon_h1": Recipe(
            "falcon_h1",
            fixed_fields(hidden_act="silu", mamba_use_mlp=True, **_ANY_STEP),
            meant={
                **{f"{name}_multiplier": 1.0 for name in _FALCON_FACTORS},
                "attention_bias": False,
                "mamba_chunk_size": 256,
                "mamba_conv_bias": True,
                "mamba_d_conv": 4,
                "mamba_d_head": "auto",
                "mamba_expand": 2,
                "mamba_n_groups": 1,
                "mamba_norm_before_gate": True,
                "mamba_proj_bias": False,
                "mamba_rms_norm": False,
                "mamba_use_mlp": True,
                "mlp_bias": False,
                # Read by nobody.
                "mlp_expansion_factor": 8,
                "mlp_multipliers": [1.0] * 2,
                "projectors_bias": False,
                "ssm_multipliers": [1.0] * 5,
                "time_step_limit": None,
            },
            norm="final_layernorm",
            words={"layers_block_type": "layer_types"},
            kinds={"hybrid": "both"},
            mixer=("input_layernorm", "mamba"),
            call="two_masks",
            layout="falcon_hybrid",
            embedding_scale="embedding_multiplier",
            logits_factor="lm_head_multiplier",
            settle=configs.settle_falcon,
        ),
        "mamba": Recipe(
            "mamba",
            _MAMBA_FIXED,
            meant={**_MAMBA_MEANT, "use_bcdt_rms": False, "mixer_rms_eps": 1e-6},
            **_MAMBA,
            call="no_mask",
            settle=configs.settle_mamba,
        ),
        "falcon_mamba": Recipe(
            "mamba",
            _MAMBA_FIXED,
            meant={**_MAMBA_MEANT, "use_bcdt_rms": True, "mixer_rms_eps": 1e-6},
            **_MAMBA,
            call="no_mask",
            settle=configs.settle_falcon_mamba,
        ),
        "mamba2": Recipe(
            "mamba2",
            fixed_fields(hidden_act="silu", rms_norm=True, norm_before_gate=(True, False)),
            meant={
                "conv_kernel": 4,
                "expand": 2,
                # Read by nobody.
                "max_position_embeddings": 2056,
                "n_groups": 8,
                "ssm_state_size": None,
                "time_step_limit": None,
                "time_step_rank": "auto",
                "tie_word_embeddings": False,
                "use_bias": False,
                "use_conv_bias": True,
            },
            **_MAMBA,
            settle=configs.settle_mamba2,
        ),
        "jamba": Recipe(
            "jamba",
            fixed_fields(hidden_act="silu"),
            meant={
                "attn_layer_offset": 4,
                "attn_layer_period": 8,
                "expert_layer_offset": 1,
                "expert_layer_period": 2,
                "mamba_conv_bias": True,
                "mamba_d_conv": 4,
                "mamba_d_state": 16,
                "mamba_dt_rank": "auto",
                "mamba_expand": 2,
                "mamba_proj_bias": False,
                "num_experts": 16,
                "num_experts_per_tok": 2,
                "tie_word_embeddings": False,
            },
            norm="final_layernorm",
            rope="",
            kinds=_STATES,
            mixer=("input_layernorm", "mamba"),
            layout="recurrent",
            settle=configs.settle_jamba,
        ),
        "olmo_hybrid": Recipe(
            "olmo_hybrid",
            fixed_fields(hidden_act="silu"),
            meant={
                "attention_bias": False,
                # transformers' own, which no config says otherwise.
                "layer_norm_epsilon": 1e-5,
                "linear_allow_neg_eigval": True,
                "linear_conv_kernel_dim": 4,
                "rope_theta": 10000.0,
                "tie_word_embeddings": False,
            },
            stills_null=True,
            kinds=_STATES,
            kind_words=("layer_types", {"linear": "linear_attention", "full": "full_attention"}),
            layout="recurrent",
            renames=(
                (".attention_layer_norm.", ".input_layernorm."),
                (".feedforward_layer_norm.", ".post_attention_layernorm."),
            ),
            settle=configs.settle_olmo,
        ),
        "recurrent_gemma": Recipe(
            "recurrent_gemma",
            fixed_fields(
                attention_bias=False,
                conv1d_width=4,
                embeddings_scale_by_sqrt_dim=True,
                hidden_activation="gelu_pytorch_tanh",
                num_key_value_heads=1,
                **_TIED,
            ),
            meant={
                "_block_types": None,
                "attention_bias": False,
                "attention_window_size": 2048,
                "conv1d_width": 4,
                "embeddings_scale_by_sqrt_dim": True,
                "logits_soft_cap": 30.0,
                "num_key_value_heads": 1,
                "partial_rotary_factor": 0.5,
                **_TIED,
            },
            norm="final_norm",
            attention="temporal_block",
            kinds={"recurrent": "linear"},
            mixer=("temporal_pre_norm", "temporal_block"),
            by_name=True,
            embedding_scale="rounded_root",
            logits_cap="logits_soft_cap",
            layout="recurrent",
            settle=configs.settle_griffin,
        ),
        "kimi_linear": Recipe(
            "kimi_linear",
            fixed_fields(
                attention_bias=False,
                hidden_act="silu",
                mla_use_nope=True,
                moe_layer_freq=1,
                moe_router_activation_func="sigmoid",
                q_lora_rank=None,
                use_grouped_topk=True,
            ),
            meant={
                "mla_use_nope": True,
                "moe_layer_freq": 1,
                "moe_renormalize": True,
                "moe_router_activation_func": "sigmoid",
                "num_expert_group": 1,
                "num_experts": 256,
                "num_experts_per_token": 8,
                "num_shared_experts": 1,
                "routed_scaling_factor": 2.446,
                "tie_word_embeddings": False,
                "topk_group": 1,
                "use_grouped_topk": True,
            },
            rope="",
            kinds=_STATES,
            mixer=("input_layernorm", "self_attn"),
            array_mask=True,
            dense=(".kv_b_proj.",),
            layout="kimi",
            renames=(
                (".block_sparse_moe.", ".mlp."),
                (".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
                *((f".{one}_conv1d.", f".{one}_conv.conv.") for one in "qkv"),
            ),
            settle=configs.settle_kimi,
        ),
        # mlx_lm alone defines it: fields and what is meant without them are its arguments'.
        "bailing_moe_linear": Recipe(
            "bailing_moe_linear",
            fixed_fields(
                hidden_act="silu",
                moe_router_enable_routed_scaling=True,
                norm_head=False,
                norm_softmax=False,
                use_rmsnorm=True,
            ),
            meant={
                "moe_router_enable_expert_bias": False,
                "moe_router_enable_routed_scaling": True,
                "moe_router_enable_shared_expert": True,
                "moe_shared_expert_intermediate_size": None,
                "n_group": 1,
                "norm_head": False,
                "norm_softmax": False,
                "routed_scaling_factor": 1.0,
                "score_function": "softmax",
                "tie_word_embeddings": False,
                "topk_group": 4,
                "use_bias": False,
                "use_qk_norm": False,
                "use_qkv_bias": False,
                "use_rmsnorm": True,
            },
            kinds=_STATES,
            mixer=("input_layernorm", "attention"),
            call="offset",
            layout="stacked",
            embedding="word_embeddings",
            renames=((".mlp.gate.weight", ".mlp.gate.gate_proj.weight"),),
            attention="attention",
            settle=configs.settle_lightning,
        ),
        "nemotron_h": Recipe(
            "nemotron_h",
            fixed_fields(
                attention_bias=False,
                mamba_hidden_act="silu",
                mlp_hidden_act="relu2",
                n_shared_experts=1,
                sliding_window=None,
            ),
            meant={
                "attention_bias": False,
                "conv_kernel": 4,
                "hybrid_override_pattern": None,
                "layer_norm_epsilon": 1e-5,
                "mlp_bias": False,
                "moe_intermediate_size": 7688,
                "moe_latent_size": None,
                "moe_shared_expert_intermediate_size": 7688,
                "n_group": 1,
                "n_groups": 8,
                "n_routed_experts": 8,
                "n_shared_experts": 1,
                "norm_topk_prob": True,
                "num_experts_per_tok": 2,
                "routed_scaling_factor": 1.0,
                "time_step_limit": None,
                "time_step_max": 0.1,
                "time_step_min": 0.001,
                "topk_group": 1,
                "use_bias": False,
                "use_conv_bias": True,
            },
            body="backbone",
            embedding="embeddings",
            norm="norm_f",
            rope="",
            attention="mixer",
            words={
                "attention_head_dim": "head_dim",
                "mamba_conv_bias": "use_conv_bias",
                "mamba_d_conv": "conv_kernel",
                "mamba_dt_limit": "time_step_limit",
                "mamba_n_groups": "n_groups",
            },
            kinds={**_STATES, "moe": "none", "mlp": "none"},
            mixer=("norm", "mixer"),
            layout="nemotron_hybrid",
            settle=configs.settle_nemotron,
        ),
    }
)
