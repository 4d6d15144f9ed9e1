"""Families with latent attention that the checkpoint's own table has not, as data.

It reads no config; ``configs/wide.py`` does. Fields and defaults are those of the families' config
classes in transformers 5.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.dense import longer_positions
from stagelink_mlx.configs.experts import settle_sparse
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LATENT_RECIPES"]

# Words of the files for the one choice of experts that most of these families have.
_CHOICE: Final = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_ONE_GROUP: Final = {"n_group": 1, "topk_group": 1}
_LATENT: Final = frozenset(("qk_head_dim", "rope_interleave"))
# Fields that say which layers have no experts; parts/experts.py reads them.
_DENSE: Final = frozenset(("first_k_dense_replace", "mlp_layer_types"))


def _sparse(module: str, *, neighbours: bool) -> Recipe:
    """Return the recipe of latent layers with an indexer, whose heads turn by neighbours or not."""
    return Recipe(
        module,
        fixed_fields(
            hidden_act="silu",
            ep_size=1,
            indexer_rope_interleave=neighbours,
            mlp_bias=False,
            moe_layer_freq=1,
            rope_interleave=True,
            **_CHOICE,
        ),
        meant={
            "attention_bias": False,
            "first_k_dense_replace": 3,
            "indexer_rope_interleave": neighbours,
            "moe_layer_freq": 1,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
            **_ONE_GROUP,
            **_CHOICE,
        },
        traditional=True,
        array_mask=True,
        dense=(".kv_b_proj.",),
        layout="latent",
        kinds=MappingProxyType({"indexed_attention": "full"}),
        made=_DENSE | _LATENT,
        settle=settle_sparse,
    )


# The first files have the longer name.
_YOUTU: Final = Recipe(
    "youtu_llm",
    fixed_fields(hidden_act="silu", mlp_bias=False),
    meant={
        "attention_bias": False,
        "mlp_bias": False,
        "q_lora_rank": 1536,
        "rope_interleave": True,
        "tie_word_embeddings": True,
    },
    traditional=True,
    made=_LATENT | {"embedding_initializer_range"},
)

LATENT_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "glm4_moe_lite": Recipe(
            "glm4_moe_lite",
            fixed_fields(hidden_act="silu", moe_layer_freq=1, **_CHOICE),
            meant={
                "attention_bias": False,
                "attention_dropout": 0.0,
                "first_k_dense_replace": 1,
                "moe_layer_freq": 1,
                "num_nextn_predict_layers": 1,
                "q_lora_rank": 768,
                "rope_interleave": True,
                **_ONE_GROUP,
                **_CHOICE,
            },
            traditional=True,
            array_mask=True,
            dense=(".kv_b_proj.",),
            layout="latent",
            made=_DENSE | _LATENT,
        ),
        "youtu": _YOUTU,
        "youtu_llm": _YOUTU,
        "deepseek_v32": _sparse("deepseek_v32", neighbours=False),
        "glm_moe_dsa": _sparse("glm_moe_dsa", neighbours=True),
        "mistral4": Recipe(
            "mistral4",
            fixed_fields(hidden_act="silu"),
            meant={
                "attention_bias": False,
                "first_k_dense_replace": 0,
                "norm_topk_prob": True,
                "q_lora_rank": 1024,
                "rope_interleave": True,
                **_ONE_GROUP,
            },
            traditional=True,
            dense=(".kv_b_proj.",),
            layout="latent",
            call="grown",
            made=_LATENT | {"llama_4_scaling_beta"},
            settle=longer_positions,
        ),
    }
)
