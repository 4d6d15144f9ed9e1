"""LongCat-Flash, whose layers attend twice and have experts that do nothing, as data.

It reads no config; ``configs/wide.py`` and ``configs/longcat.py`` do.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.longcat import TWICE, settle_longcat, settle_ngrams
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LONGCAT_RECIPES"]

# What transformers computes, whatever a file says of it.
_ALWAYS: Final = {
    "attention_method": "MLA",
    "mla_scale_kv_lora": True,
    "mla_scale_q_lora": True,
    "norm_topk_prob": False,
    "router_bias": False,
    "tie_word_embeddings": False,
    "zero_expert_type": "identity",
}

_LONGCAT: Final = Recipe(
    "longcat_flash",
    fixed_fields(hidden_act="silu", **_ALWAYS),
    meant={
        **_ALWAYS,
        "attention_bias": False,
        "rope_theta": 10000000.0,
        "zero_expert_num": 256,
    },
    traditional=True,
    array_mask=True,
    dense=(".kv_b_proj.",),
    layout="idle_experts",
    renames=((".mlp.router.classifier.", ".mlp.router."),),
    words={
        "intermediate_size": "ffn_hidden_size",
        "moe_intermediate_size": "expert_ffn_hidden_size",
        "num_experts_per_tok": "moe_topk",
        "num_layers": "num_hidden_layers",
        "num_local_experts": "n_routed_experts",
    },
    kinds=MappingProxyType({TWICE: "twice"}),
    drafter=("model.mtp.",),
    settle=settle_longcat,
)
# The same layers behind an embedding of the last tokens; mlx_lm alone defines it.
_NGRAMS: Final = dataclasses.replace(
    _LONGCAT,
    module="longcat_flash_ngram",
    meant={
        **(_LONGCAT.meant or {}),
        "emb_neighbor_num": 4,
        "emb_split_num": 4,
        "ngram_vocab_size_ratio": 78,
        "rope_theta": 5000000.0,
    },
    embedding="ngram_embeddings",
    renames=(
        *_LONGCAT.renames,
        ("model.embed_tokens.", "model.ngram_embeddings.word_embeddings."),
    ),
    ngrams=True,
    settle=settle_ngrams,
)

LONGCAT_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {"longcat_flash": _LONGCAT, "longcat_flash_ngram": _NGRAMS}
)
