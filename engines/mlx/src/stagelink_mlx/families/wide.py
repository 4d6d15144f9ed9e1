"""Families that mlx_lm has and the checkpoint's own table has not, as data.

It reads no config; ``configs/wide.py`` does. Fields and defaults are those of the families' config
classes in transformers 5.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.experts import settle_hunyuan
from stagelink_mlx.families.bailing_hybrid import BAILING_HYBRID_RECIPES
from stagelink_mlx.families.bailing_v3 import BAILING_V3_RECIPES
from stagelink_mlx.families.dbrx import DBRX_RECIPES
from stagelink_mlx.families.dense import DENSE_RECIPES
from stagelink_mlx.families.experts import EXPERT_RECIPES
from stagelink_mlx.families.gear import GEAR_RECIPES
from stagelink_mlx.families.handed import HANDED_RECIPES
from stagelink_mlx.families.hybrid import HYBRID_RECIPES
from stagelink_mlx.families.kimi_k3 import KIMI_K3_RECIPES
from stagelink_mlx.families.longcat import LONGCAT_RECIPES
from stagelink_mlx.families.loops import LOOP_RECIPES
from stagelink_mlx.families.minimax_m3 import MINIMAX_M3_RECIPES
from stagelink_mlx.families.plamo2 import PLAMO2_RECIPES
from stagelink_mlx.families.recipes import Recipe, fixed_fields
from stagelink_mlx.families.texts import TEXT_RECIPES
from stagelink_mlx.families.token_readers import TOKEN_RECIPES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["WIDE_RECIPES"]

_NO_BIAS: Final = {"attention_bias": False, "mlp_bias": False}
_HALF: Final = {"partial_rotary_factor": 0.5}
_TIED: Final = {"tie_word_embeddings": True}

WIDE_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        **BAILING_HYBRID_RECIPES,
        **BAILING_V3_RECIPES,
        **DBRX_RECIPES,
        **DENSE_RECIPES,
        **EXPERT_RECIPES,
        **HANDED_RECIPES,
        **GEAR_RECIPES,
        **HYBRID_RECIPES,
        **KIMI_K3_RECIPES,
        **LONGCAT_RECIPES,
        **LOOP_RECIPES,
        **PLAMO2_RECIPES,
        **MINIMAX_M3_RECIPES,
        **TEXT_RECIPES,
        **TOKEN_RECIPES,
        "mistral": Recipe(
            "llama",
            fixed_fields(hidden_act="silu"),
            model_type="llama",
            # The texts of some models with pictures leave the usual number of heads out.
            meant={**_NO_BIAS, "num_attention_heads": 32},
            slides_alike=True,
        ),
        "phi3": Recipe(
            "phi3",
            fixed_fields(
                hidden_act="silu",
                attention_bias=False,
                # Words of Phi-4-mini's file.
                full_attn_mod=1,
                interpolate_factor=(1, 1.0),
                lm_head_bias=False,
                mlp_bias=False,
            ),
            meant={},
            slides_alike=True,
        ),
        "starcoder2": Recipe(
            "starcoder2",
            fixed_fields(
                hidden_act=("gelu", "gelu_pytorch_tanh"),
                # Of released files; hidden_act is what is read.
                activation_function=("gelu", "gelu_pytorch_tanh"),
                use_bias=True,
                mlp_type="default",
                norm_type="layer_norm",
                scale_attn_weights=True,
            ),
            meant={"hidden_act": "gelu_pytorch_tanh", "use_bias": True},
            slides_alike=True,
        ),
        "gemma": Recipe(
            "gemma",
            fixed_fields(
                # The first files say gelu and mean the other; transformers reads them so.
                hidden_act=("gelu", "gelu_pytorch_tanh"),
                hidden_activation=(None, "gelu_pytorch_tanh"),
                attention_bias=False,
                use_bidirectional_attention=(None, False),
                **_TIED,
            ),
            meant={"hidden_act": "gelu_pytorch_tanh"},
            embedding_scale="root",
        ),
        "gemma2": Recipe(
            "gemma2",
            fixed_fields(
                hidden_act="gelu_pytorch_tanh",
                hidden_activation="gelu_pytorch_tanh",
                attention_bias=False,
                use_bidirectional_attention=(None, False),
                **_TIED,
            ),
            meant={},
            array_mask=True,
            embedding_scale="root",
            logits_cap="final_logit_softcapping",
            slides_every=2,
        ),
        "cohere": Recipe(
            "cohere",
            fixed_fields(hidden_act="silu", **_TIED),
            meant={"attention_bias": False, "use_qk_norm": False, "layer_norm_bias": False},
            traditional=True,
            made=frozenset(("model_max_length",)),
            logits_factor="logit_scale",
        ),
        "cohere2": Recipe(
            "cohere2",
            fixed_fields(
                hidden_act="silu",
                # Words of the released files, of which no code of transformers reads another value.
                layer_switch=4,
                order_of_interleaved_layers="local_attn_first",
                position_embedding_type="rope_gptj",
                rotary_pct=(1, 1.0),
                use_embedding_sharing=True,
                use_gated_activation=True,
                use_parallel_block=True,
                use_parallel_embedding=True,
                **_TIED,
            ),
            meant={"attention_bias": False, "layer_norm_bias": False},
            traditional=True,
            logits_factor="logit_scale",
            slides_every=4,
        ),
        "glm": Recipe("glm", fixed_fields(hidden_act="silu"), meant=_HALF, traditional=True),
        "glm4": Recipe("glm4", fixed_fields(hidden_act="silu"), meant=_HALF, traditional=True),
        "ernie4_5": Recipe(
            "ernie4_5",
            fixed_fields(hidden_act="silu", compression_ratio=(1, 1.0)),
            meant={"use_bias": False},
            traditional=True,
        ),
        "helium": Recipe(
            "helium", fixed_fields(hidden_act="silu"), meant=_NO_BIAS, traditional=True
        ),
        "nemotron": Recipe("nemotron", fixed_fields(hidden_act="relu2"), meant=_NO_BIAS | _HALF),
        "exaone4": Recipe("exaone4", fixed_fields(hidden_act="silu"), meant={}),
        "seed_oss": Recipe("seed_oss", fixed_fields(hidden_act="silu"), meant={"mlp_bias": False}),
        # Without kinds transformers lets three of four layers slide; its RoPE is one for each kind.
        "olmo3": Recipe(
            "olmo3",
            fixed_fields(hidden_act="silu"),
            meant={"attention_bias": False},
            slides_every=4,
            plain_theta=500000.0,
        ),
        "hunyuan_v1_dense": Recipe(
            "hunyuan_v1_dense",
            fixed_fields(hidden_act="silu"),
            meant={"attention_bias": False, "use_qk_norm": True},
            settle=settle_hunyuan,
        ),
        "stablelm": Recipe(
            "stablelm",
            fixed_fields(hidden_act="silu"),
            meant={
                "partial_rotary_factor": 0.25,
                "qk_layernorm": False,
                "use_parallel_residual": False,
                "use_qkv_bias": False,
            },
        ),
        "qwen2_moe": Recipe(
            "qwen2_moe",
            fixed_fields(hidden_act="silu", qkv_bias=True),
            meant={"decoder_sparse_step": 1, "mlp_only_layers": (), "norm_topk_prob": False},
            layout="stacked",
            made=frozenset(("decoder_sparse_step", "mlp_only_layers", "norm_topk_prob")),
        ),
        "olmoe": Recipe(
            "olmoe",
            fixed_fields(hidden_act="silu", clip_qkv=None),
            meant={**_NO_BIAS, "norm_topk_prob": False},
            layout="stacked",
        ),
        "granitemoe": Recipe(
            "granitemoe",
            fixed_fields(hidden_act="silu"),
            meant={"attention_bias": False},
            layout="halves",
            embedding_scale="embedding_multiplier",
            logits_divisor="logits_scaling",
        ),
    }
)
