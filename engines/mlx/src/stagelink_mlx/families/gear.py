"""Gear as data: attention in some layers, and in the others a gate over short convolutions.

It reads no config; ``configs/wide.py`` does. mlx_lm alone defines it: fields and what is meant
without them are its arguments'.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink_mlx.families.recipes import Recipe, fixed_fields
from stagelink_mlx.refusal import refuse_field

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GEAR_RECIPES"]

_KINDS: Final = {
    "full": "full_attention",
    "linear": "conv_mixer",
    "sliding": "sliding_attention",
}


def settle_gear(config: dict[str, Any], layers: int) -> None:
    """Say how each kind of layer turns, and what scores are divided by."""
    del layers
    if config["query_pre_attn_scalar"] is None:
        config["query_pre_attn_scalar"] = config.get("head_dim")
    said = config.get("rope_parameters")
    if said is not None:
        raise refuse_field("rope_parameters", "rope_theta and rope_local_base_freq", said)
    full = {"rope_theta": config.pop("rope_theta", 1000000.0), **(config.pop("rope_scaling") or {})}
    near = {"rope_theta": config["rope_local_base_freq"]}
    config["rope_parameters"] = {"full_attention": full, "sliding_attention": near}


GEAR_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "gear": Recipe(
            "gear",
            fixed_fields(
                hidden_activation=(
                    *("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "silu", "swish"),
                ),
                use_bidirectional_attention=False,
            ),
            meant={
                "attention_bias": False,
                "attention_dropout": 0.0,
                "attn_logit_softcapping": None,
                "conv_L_cache": 3,
                "final_logit_softcapping": None,
                "hidden_activation": "gelu_pytorch_tanh",
                "max_position_embeddings": None,
                "query_pre_attn_scalar": None,
                "rope_local_base_freq": 10000.0,
                "rope_scaling": None,
                "sliding_window": 512,
                "tie_word_embeddings": True,
                "use_bidirectional_attention": False,
            },
            embedding_scale="root",
            logits_cap="final_logit_softcapping",
            kinds=MappingProxyType({"conv_mixer": "linear"}),
            kind_words=("layer_types", MappingProxyType(_KINDS)),
            mixer=("input_layernorm", "local_mixer"),
            layout="recurrent",
            unread=(".rotary_emb.inv_freq", "embed_scale"),
            settle=settle_gear,
        ),
    }
)
