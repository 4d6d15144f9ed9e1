"""Replaces the parts of mlx_lm's layers that compute something else than the model's config says.

It builds no layer and reads no weights; what a config may say at all is in
``configs/arguments.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
from mlx import nn

from stagelink_mlx.library import models_module
from stagelink_mlx.parts.experts import correct_experts
from stagelink_mlx.parts.recurrence import correct_recurrence

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.engine import Family

__all__ = ["TanhBlock", "correct_layers"]


def correct_layers(layers: Iterable[nn.Module], family: Family, first: int) -> None:
    """Correct layers from ``first`` on in place."""
    config = family.config
    for n, layer in enumerate(layers, first):
        slides = family.layer_kinds[n] == "sliding"
        correct_experts(layer, family, n)
        correct_recurrence(layer, family)
        if family.model_type == "gemma":
            # mlx_lm's own block has the exact GELU, and this one the family's.
            layer.mlp = models_module("gemma2").MLP(family.width, config["intermediate_size"])
        if family.model_type == "starcoder2" and config["hidden_act"] == "gelu_pytorch_tanh":
            layer.mlp = TanhBlock(layer.mlp)
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


class TanhBlock(nn.Module):
    """Starcoder2's feed-forward block with the tanh form of GELU, which mlx_lm's does not have."""

    def __init__(self, block: nn.Module) -> None:
        """Take the two matrices of mlx_lm's block."""
        super().__init__()
        self.c_fc, self.c_proj = block.c_fc, block.c_proj

    def __call__(self, rows: mx.array) -> mx.array:
        """Return ``[..., width]`` of rows ``[..., width]``."""
        out: mx.array = self.c_proj(nn.gelu_approx(self.c_fc(rows)))
        return out
