"""Brings fields that only families with recurrent layers have into the words of ``wide.py``.

It builds nothing and knows no layer: a config comes in as a mapping that is this engine's own, and
is changed in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink_mlx.wide import refuse_field

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["settle_lfm2"]

# Words of released files about training.
_LFM2_TRAINING = (
    "block_mlp_init_scale",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_use_xavier_init",
)


def settle_lfm2(config: dict[str, Any], layers: int) -> None:
    """LFM2: which layers attend is said by their kinds, or by their numbers."""
    _drop(config, _LFM2_TRAINING)
    _same(
        config,
        {
            "block_dim": "hidden_size",
            "conv_dim": "hidden_size",
            "conv_dim_out": "hidden_size",
            "num_heads": "num_attention_heads",
            "block_norm_eps": "norm_eps",
        },
    )
    numbers = config.pop("full_attn_idxs", None)
    kinds = config.get("layer_types")
    if numbers is not None:
        found = ["full_attention" if n in numbers else "conv" for n in range(layers)]
        if kinds is not None and kinds != found:
            raise refuse_field("full_attn_idxs", "the layers of layer_types", numbers)
        kinds = config["layer_types"] = found
    if isinstance(kinds, list):
        config["full_attn_idxs"] = [n for n, one in enumerate(kinds) if one == "full_attention"]
    if "block_ffn_dim_multiplier" in config:
        # What mlx_lm calls the width of the rows in a feed-forward block.
        config["block_dim"] = config["hidden_size"]


def _drop(config: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Take out what changes no row."""
    for key in keys:
        config.pop(key, None)


def _same(config: dict[str, Any], names: Mapping[str, str]) -> None:
    """Take out fields that say what another one says.

    Raises:
        ConfigError: ``config_field`` where they say something else.
    """
    for key, usual in names.items():
        value = config.pop(key, None)
        if value is not None and value != config.get(usual):
            raise refuse_field(key, f"{config.get(usual)} as {usual} says", value)
