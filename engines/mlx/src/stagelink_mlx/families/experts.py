"""Families with experts that the checkpoint's own table has not, as data.

It reads no config; ``configs/wide.py`` does. Fields and defaults are those of the families' config
classes in transformers 5.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.experts import (
    settle_afmoe,
    settle_dots1,
    settle_first_minimax,
    settle_hunyuan_moe,
    settle_laguna,
    settle_llama4,
    settle_mimo_v2_flash,
    settle_minimax,
    settle_muse,
    settle_phimoe,
    settle_solar,
)
from stagelink_mlx.families import hunyuan
from stagelink_mlx.families.experts_lone import LONE_RECIPES
from stagelink_mlx.families.latent import LATENT_RECIPES
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EXPERT_RECIPES"]

# Words of the files for the one choice of experts that these families have.
_CHOICE: Final = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_ONE_GROUP: Final = {"n_group": 1, "topk_group": 1}
_KINDS: Final = (
    "layer_types",
    MappingProxyType({"full": "full_attention", "sliding": "sliding_attention"}),
)
# Fields that say which layers have no experts; parts/experts.py reads them.
_DENSE: Final = frozenset(("first_k_dense_replace", "mlp_layer_types"))
_SHARE: Final = "partial_rotary_factor"
_PARTS: Final = ("gate_proj", "up_proj", "down_proj")
# Where mlx_lm's own files have stacked experts under the name of single ones.
_STACKS: Final = tuple((f".experts.{one}.", f".switch_mlp.{one}.") for one in _PARTS)


# Its first files say minimax, which is another family's name.
_MINIMAX_M2: Final = Recipe(
    "minimax",
    fixed_fields(
        hidden_act="silu",
        # Factors of residuals that the family's first models had.
        layernorm_full_attention_beta=(1, 1.0),
        layernorm_linear_attention_beta=(1, 1.0),
        layernorm_mlp_beta=(1, 1.0),
        qk_norm_type="per_layer",
        scoring_func="sigmoid",
        shared_intermediate_size=0,
        use_qk_norm=True,
        use_routing_bias=True,
    ),
    model_type="minimax",
    meant={"scoring_func": "sigmoid", "shared_intermediate_size": 0, "use_qk_norm": True},
    layout="stacked",
    renames=((".block_sparse_moe.e_score_", ".block_sparse_moe.gate.e_score_"),),
    # Of a drafter, and of a shared expert of no width.
    made=frozenset(
        (
            "mlp_intermediate_size",
            "mtp_transformer_layers",
            "num_mtp_modules",
            "shared_moe_mode",
            "use_mtp",
        )
    ),
    settle=settle_minimax,
)
# One whose text a folder with pictures has, too, or a flat folder that mlx_lm makes.
_MUSE_GLIMMER: Final = Recipe(
    "muse_glimmer",
    fixed_fields(hidden_activation="silu", attention_bias=False),
    model_type="muse_glimmer",
    meant={
        "final_logit_softcapping": 20.0,
        "hidden_activation": "silu",
        "output_multiplier": 0.19611613513818404,
        "post_norm_eps": 1e-8,
        "qk_scale_factor": 3.87,
        "sliding_window": 2048,
    },
    embedding_epsilon="rms_norm_eps",
    logits_factor="output_multiplier",
    logits_cap="final_logit_softcapping",
    kind_words=_KINDS,
    settle=settle_muse,
)

EXPERT_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        **LATENT_RECIPES,
        "muse_glimmer": _MUSE_GLIMMER,
        "muse_glimmer_text": _MUSE_GLIMMER,
        **LONE_RECIPES,
        "glm4_moe": Recipe(
            "glm4_moe",
            fixed_fields(hidden_act="silu", **_CHOICE),
            meant={
                "attention_bias": False,
                _SHARE: 0.5,
                "use_qk_norm": False,
                **_ONE_GROUP,
                **_CHOICE,
            },
            layout="stacked",
        ),
        # The released file calls the scores by the method; transformers reads neither word.
        "dots1": Recipe(
            "dots1",
            fixed_fields(
                hidden_act="silu",
                attention_bias=False,
                mlp_bias=False,
                moe_layer_freq=1,
                scoring_func=("noaux_tc", "sigmoid"),
                topk_method="noaux_tc",
            ),
            meant={
                "attention_bias": False,
                "first_sliding_layer": 62,
                "mlp_bias": False,
                "sliding_window": 4096,
                "scoring_func": "sigmoid",
                **_ONE_GROUP,
            },
            layout="stacked",
            renames=_STACKS,
            words={"max_window_layers": "first_sliding_layer"},
            settle=settle_dots1,
        ),
        "solar_open": Recipe(
            "solar_open",
            fixed_fields(hidden_act="silu", first_k_dense_replace=0, use_qk_norm=False, **_CHOICE),
            meant={
                "attention_bias": False,
                "first_k_dense_replace": 0,
                "use_qk_norm": False,
                **_ONE_GROUP,
                **_CHOICE,
            },
            layout="stacked",
            settle=settle_solar,
        ),
        "exaone_moe": Recipe(
            "exaone_moe",
            fixed_fields(hidden_act="silu", **_CHOICE),
            meant={
                "first_k_dense_replace": 1,
                "norm_topk_prob": True,
                "sliding_window": 4096,
                **_ONE_GROUP,
                **_CHOICE,
            },
            layout="stacked",
            renames=((".mlp.e_score_", ".mlp.gate.e_score_"),),
            kind_words=_KINDS,
            slides_every=4,
            made=_DENSE | {"mtp_share_layers"},
        ),
        "minimax": dataclasses.replace(_MINIMAX_M2, settle=settle_first_minimax),
        "minimax_m2": _MINIMAX_M2,
        "afmoe": Recipe(
            "afmoe",
            fixed_fields(
                hidden_act="silu",
                attention_bias=False,
                n_group=1,
                num_expert_groups=1,
                num_limited_groups=1,
                route_norm=True,
                score_func="sigmoid",
                topk_group=1,
            ),
            meant={
                "mup_enabled": False,
                "num_dense_layers": 1,
                "route_norm": True,
                "route_scale": 1.0,
                "score_func": "sigmoid",
                "sliding_window": 1024,
                **_ONE_GROUP,
            },
            embedding_scale="embedding_factor",
            layout="stacked",
            renames=(
                *_STACKS,
                (".router.gate.", ".gate."),
                (".mlp.expert_bias", ".mlp.gate.e_score_correction_bias"),
            ),
            slides_every=4,
            words={"global_attn_every_n_layers": "sliding_window_pattern"},
            made=frozenset(("embedding_factor", "load_balance_coeff", "use_grouped_mm")),
            settle=settle_afmoe,
        ),
        "ernie4_5_moe": Recipe(
            "ernie4_5_moe",
            fixed_fields(
                hidden_act="silu",
                compression_ratio=(1, 1.0),
                moe_gate="topk",
                moe_gate_act="softmax",
                use_bias=False,
                use_rmsnorm=True,
            ),
            meant={
                "moe_capacity": [],
                "moe_gate_act": "softmax",
                "moe_layer_end_index": -1,
                "moe_layer_interval": 1,
                "moe_layer_start_index": 1,
                "moe_norm_min": 1e-12,
                "moe_num_shared_experts": 2,
                "moe_use_aux_free": True,
                "tie_word_embeddings": True,
                "use_bias": False,
            },
            traditional=True,
            layout="flat_correction",
            renames=((".mlp.moe_statics.", ".mlp.gate."),),
            made=frozenset(("moe_norm_min",)),
            drafter=(".mtp_",),
        ),
        "hunyuan_v1_moe": Recipe(
            "hunyuan",
            fixed_fields(
                **hunyuan.FIXED,
                norm_topk_prob=True,
                use_cla=False,
                use_mixed_mlp_moe=True,
                use_qk_norm=True,
            ),
            model_type="hunyuan",
            meant={
                "attention_bias": False,
                "cla_share_factor": 2,
                "moe_intermediate_size": None,
                "num_shared_expert": 1,
                "use_cla": False,
                "use_mixed_mlp_moe": True,
                "use_qk_norm": True,
            },
            layout="stacked",
            renames=hunyuan.RENAMES,
            call="pair",
            made=hunyuan.HARMLESS_WORDS,
            settle=settle_hunyuan_moe,
        ),
        "llama4_text": Recipe(
            "llama4",
            fixed_fields(hidden_act="silu", num_experts_per_tok=1),
            "TextArgs",
            outer="language_model.",
            meant={
                "attention_bias": False,
                "attention_chunk_size": 8192,
                "attn_scale": 0.1,
                "attn_temperature_tuning": True,
                "floor_scale": 8192,
                "interleave_moe_layer_step": 1,
                "no_rope_layer_interval": 4,
                "use_qk_norm": True,
            },
            traditional=True,
            layout="turned_halves",
            kinds=MappingProxyType({"chunked_attention": "chunked"}),
            made=frozenset(("for_llm_compressor", "no_rope_layers")),
            settle=settle_llama4,
        ),
        "mimo_v2_flash": Recipe(
            "mimo_v2_flash",
            fixed_fields(
                hidden_act="silu",
                add_full_attention_sink_bias=False,
                add_swa_attention_sink_bias=True,
                attention_bias=False,
                attention_projection_layout="split",
                n_shared_experts=None,
                **_CHOICE,
            ),
            meant={
                "attention_bias": False,
                "attention_value_scale": 0.707,
                _SHARE: 0.334,
                "head_dim": 192,
                "norm_topk_prob": True,
                "sliding_window": 129,
                "v_head_dim": 128,
                **_ONE_GROUP,
                **_CHOICE,
            },
            layout="stacked",
            # The first word is what masks were once cut to; no code reads it.
            made=_DENSE | {"attention_chunk_size", "rms_norm_eps"},
            drafter=("model.mtp.",),
            settle=settle_mimo_v2_flash,
        ),
        "laguna": Recipe(
            "laguna",
            fixed_fields(
                hidden_act="silu",
                gating=(True, "per-head"),
                moe_apply_router_weight_on_input=False,
                moe_router_score_func="sigmoid",
            ),
            meant={
                "attention_bias": False,
                "gating": True,
                "moe_routed_scaling_factor": 1.0,
                "moe_router_logit_softcapping": 0.0,
                "moe_router_score_func": "sigmoid",
                "sliding_window": 512,
            },
            layout="stacked",
            renames=(
                (".mlp.gate.proj.", ".mlp.gate."),
                (".experts.e_score_", ".gate.e_score_"),
                (".mlp.shared_expert.", ".mlp.shared_experts."),
            ),
            settle=settle_laguna,
        ),
        # Two experts, whatever a file says: the second is chosen after the first is masked out.
        "phimoe": Recipe(
            "phimoe",
            fixed_fields(
                hidden_act="silu",
                attention_bias=True,
                lm_head_bias=True,
                num_experts_per_tok=2,
                tie_word_embeddings=False,
            ),
            meant={
                "attention_bias": False,
                "lm_head_bias": False,
                "router_jitter_noise": 0.01,
                "tie_word_embeddings": False,
            },
            layout="stacked",
            slides_alike=True,
            made=frozenset(("input_jitter_noise",)),
            settle=settle_phimoe,
        ),
    }
)
