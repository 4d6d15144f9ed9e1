"""Families with experts that no library but mlx_lm defines, as data.

It reads no config; ``configs/wide.py`` does. Fields are those of mlx_lm's arguments, and what is
meant where a config leaves one out is what mlx_lm takes.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.experts import settle_phixtral, settle_step
from stagelink_mlx.families.recipes import Recipe, fixed_fields
from stagelink_mlx.parts.norms import first_layer_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LONE_RECIPES"]

_PARTS: Final = ("gate_proj", "up_proj", "down_proj")

LONE_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "bailing_moe": Recipe(
            "bailing_moe",
            fixed_fields(
                hidden_act="silu",
                multi_gate=False,
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
                "rotary_dim": None,
                "routed_scaling_factor": 1.0,
                "score_function": "softmax",
                "tie_word_embeddings": False,
                "topk_group": 4,
                "use_bias": False,
                "use_qk_norm": False,
                "use_qkv_bias": False,
            },
            layout="stacked",
            embedding="word_embeddings",
            renames=((".mlp.gate.weight", ".mlp.gate.gate_proj.weight"),),
            attention="attention",
            made=frozenset(("output_dropout", "router_dtype")),
        ),
        "deepseek": Recipe(
            "deepseek",
            fixed_fields(
                hidden_act="silu",
                norm_topk_prob=False,
                scoring_func="softmax",
                tie_word_embeddings=False,
            ),
            meant={
                "attention_bias": False,
                "first_k_dense_replace": 0,
                "moe_layer_freq": 1,
                "n_routed_experts": None,
                "n_shared_experts": None,
                "num_experts_per_tok": None,
                "tie_word_embeddings": False,
            },
            layout="stacked",
        ),
        "Klear": Recipe(
            "Klear",
            fixed_fields(hidden_act="silu", tie_word_embeddings=False),
            meant={"tie_word_embeddings": False},
            layout="stacked_in_place",
        ),
        # Its files have the first Phi's words, which mlx_lm's arguments have not.
        "phi-msft": Recipe(
            "phixtral",
            fixed_fields(
                activation_function=("gelu_new", "gelu_pytorch_tanh"),
                img_processor=None,
                layer_norm_epsilon=1e-5,
                n_head_kv=None,
                n_inner=None,
                tie_word_embeddings=False,
            ),
            meant={
                "layer_norm_epsilon": 1e-5,
                "num_experts_per_tok": 2,
                "num_local_experts": 4,
                "rope_theta": 10000.0,
                "rotary_dim": 32,
                "tie_word_embeddings": False,
            },
            body="transformer",
            layers="h",
            embedding="embd",
            norm="ln",
            head="lm_head.linear",
            attention="mixer",
            final=first_layer_norm,
            layout="numbered_blocks",
            renames=(("lm_head.ln.", "transformer.ln."),),
            words={
                "model_dim": "hidden_size",
                "n_embd": "hidden_size",
                "n_head": "num_attention_heads",
                "n_layer": "num_hidden_layers",
                "n_positions": "max_position_embeddings",
                "num_heads": "num_attention_heads",
                "num_layers": "num_hidden_layers",
                "num_vocab": "vocab_size",
            },
            # Which of several equal programs runs.
            made=frozenset(("flash_attn", "flash_rotary", "fused_dense")),
            settle=settle_phixtral,
        ),
        "step3p5": Recipe(
            "step3p5",
            fixed_fields(
                hidden_act="silu",
                att_impl_type="GQA",
                moe_every_n_layer=1,
                moe_router_activation="sigmoid",
                sink=False,
                tie_word_embeddings=False,
                use_mfa=False,
                use_moe=True,
                use_moe_router_bias=True,
                use_qk_norm=True,
                zero_centered=True,
            ),
            meant={
                "attention_other_setting": None,
                "moe_intermediate_size": 1280,
                "moe_layers_enum": None,
                "moe_num_experts": 288,
                "moe_router_scaling_factor": 3.0,
                "moe_top_k": 8,
                "norm_expert_weight": True,
                "rms_norm_eps": 1e-5,
                "share_expert_dim": 1280,
                "sliding_window": 512,
                "swiglu_limits": None,
                "swiglu_limits_shared": None,
                "tie_word_embeddings": False,
                "use_head_wise_attn_gate": True,
            },
            renames=(
                *((f".moe.{one}.", f".mlp.switch_mlp.{one}.") for one in _PARTS),
                (".moe.gate.", ".mlp.gate.gate."),
                (".moe.router_bias", ".mlp.gate.router_bias"),
                (".mlp.share_expert.", ".share_expert."),
                (".share_expert.", ".mlp.share_expert."),
            ),
            words={"num_attention_groups": "num_key_value_heads"},
            made=frozenset(("max_seq_len", "need_fp32_gate")),
            drafter=(".mtp",),
            bare_norms=".moe.",
            settle=settle_step,
        ),
    }
)
