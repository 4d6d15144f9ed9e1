"""Families whose layers hand the next one more than rows, and that mlx_lm alone defines, as data.

It reads no config; ``configs/wide.py`` and ``configs/handed.py`` do. What is handed and how is in
``parts/handed.py``; where a cut is impossible says the checkpoint's own family.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.handed import REUSED, settle_afm, settle_hunyuan_large, settle_rwkv
from stagelink_mlx.families import hunyuan
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HANDED_RECIPES"]

_TIED: Final = {"tie_word_embeddings": True}

HANDED_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "hunyuan": Recipe(
            "hunyuan",
            fixed_fields(
                **hunyuan.FIXED,
                **_TIED,
            ),
            meant={
                "attention_bias": False,
                "cla_share_factor": 2,
                "moe_intermediate_size": None,
                "moe_topk": 1,
                "num_experts": 1,
                "num_shared_expert": 1,
                "use_cla": False,
                "use_mixed_mlp_moe": False,
                "use_qk_norm": False,
                **_TIED,
            },
            layout="grouped_heads",
            renames=hunyuan.RENAMES,
            call="raw_keys",
            made=hunyuan.HARMLESS_WORDS
            | {
                *("im_end_id", "im_newline_id", "im_start_id", "norm_topk_prob"),
                *("num_media_embeds", "skip_cls_token"),
            },
            settle=settle_hunyuan_large,
        ),
        "afm7": Recipe(
            "afm7",
            fixed_fields(**_TIED),
            meant={
                "hidden_dim_scale_factor": 3.25,
                "rms_norm_eps": 1e-5,
                "rope_theta": 50000.0,
                **_TIED,
            },
            traditional=True,
            embedding="embedding",
            norm="output_norm",
            tail="kv_reuse_layers",
            words={
                "hidden_dim": "hidden_size",
                "num_heads": "num_attention_heads",
                "num_kv_heads": "num_key_value_heads",
                "num_layers": "num_hidden_layers",
            },
            kinds=MappingProxyType({REUSED: "none"}),
            call="whole_state",
            settle=settle_afm,
        ),
        "rwkv7": Recipe(
            "rwkv7",
            fixed_fields(hidden_act="sqrelu", norm_bias=True, norm_first=True),
            meant={"tie_word_embeddings": False},
            embedding="embeddings",
            rope="",
            kinds=MappingProxyType({"linear_attention": "linear"}),
            layout="heads_of_vectors",
            made=frozenset(("num_attention_heads",)),
            call="first_values",
            carries_values=True,
            settle=settle_rwkv,
        ),
    }
)
