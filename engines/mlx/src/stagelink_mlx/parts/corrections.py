"""Replaces the parts of mlx_lm's layers that compute something else than the model's config says.

It builds no layer and reads no weights; what a config may say at all is in
``configs/arguments.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_mlx.library import models_module
from stagelink_mlx.parts.experts import correct_experts
from stagelink_mlx.parts.handed import hold_state_in_floats
from stagelink_mlx.parts.recurrence import correct_recurrence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlx import nn

    from stagelink.engine import Family

__all__ = ["correct_layers"]


def correct_layers(layers: Iterable[nn.Module], family: Family, first: int) -> None:
    """Correct layers from ``first`` on in place."""
    config = family.config
    for n, layer in enumerate(layers, first):
        slides = family.layer_kinds[n] == "sliding"
        correct_experts(layer, family, n)
        correct_recurrence(layer, family)
        if family.model_type == "rwkv7":
            hold_state_in_floats(layer.attn)
        if family.model_type == "gemma":
            # mlx_lm's own block has the exact GELU, and this one the family's.
            layer.mlp = models_module("gemma2").MLP(family.width, config["intermediate_size"])
        if family.model_type == "cohere2":
            # Only layers that slide turn by position; mlx_lm knows them by a number.
            layer.self_attn.use_sliding_window = slides
        if family.model_type == "exaone4":
            layer.self_attn.use_rope = slides or config.get("sliding_window") is None
        if family.model_type == "gpt_oss":
            activation = layer.mlp.experts.activation
            layer.mlp.experts.activation = type(activation)(
                alpha=config["swiglu_alpha"], limit=config["swiglu_limit"]
            )
