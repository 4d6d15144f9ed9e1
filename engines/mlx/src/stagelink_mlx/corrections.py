"""Replaces the parts of mlx_lm's layers that compute something else than the model's config says.

It builds no layer and reads no weights; what a config may say at all is in ``arguments.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.library import models_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagelink.engine import Family

__all__ = ["SigmoidRouter", "TanhBlock", "correct_layers"]

# A group of experts is worth the sum of so many of its best.
_GROUP_SCORES = 2
_SUM_EPSILON = 1e-20


def correct_layers(layers: Iterable[nn.Module], family: Family, first: int) -> None:
    """Correct layers from ``first`` on in place."""
    config = family.config
    for n, layer in enumerate(layers, first):
        slides = family.layer_kinds[n] == "sliding"
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
        if family.model_type == "deepseek_v3" and "gate" in layer.mlp:
            layer.mlp.gate = SigmoidRouter(config)
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


class SigmoidRouter(nn.Module):
    """DeepSeek-V3's choice of experts (arXiv 2412.19437, 2.1.2), as transformers 5 computes it.

    mlx_lm's gives experts outside the chosen groups the score 0, which is more than an expert with
    a low correction has inside them, and never norms the share of a single expert.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take the sizes; the weights are zeros until they are loaded."""
        super().__init__()
        self.used = config["num_experts_per_tok"]
        self.groups, self.groups_used = config["n_group"], config["topk_group"]
        self.is_normed, self.scale = config["norm_topk_prob"], config["routed_scaling_factor"]
        self.weight = mx.zeros((config["n_routed_experts"], config["hidden_size"]))
        self.e_score_correction_bias = mx.zeros((config["n_routed_experts"],))

    def __call__(self, rows: mx.array) -> tuple[mx.array, mx.array]:
        """Return the chosen experts ``[..., used]`` and their shares, float32."""
        scores = mx.sigmoid(rows.astype(mx.float32) @ self.weight.astype(mx.float32).T)
        worth = self._inside(scores + self.e_score_correction_bias)
        chosen = mx.argpartition(-worth, kth=self.used - 1, axis=-1)[..., : self.used]
        shares = mx.take_along_axis(scores, chosen, axis=-1)
        if self.is_normed:
            shares = shares / (shares.sum(axis=-1, keepdims=True) + _SUM_EPSILON)
        return chosen, shares * self.scale

    def _inside(self, worth: mx.array) -> mx.array:
        """Return ``worth`` with nothing left of experts whose group is not among the best."""
        lost = self.groups - self.groups_used
        if lost == 0:
            return worth
        grouped = mx.unflatten(worth, axis=-1, shape=(self.groups, -1))
        best = mx.topk(grouped, _GROUP_SCORES, axis=-1).sum(axis=-1, keepdims=True)
        out = mx.argpartition(best, kth=lost - 1, axis=-2)[..., :lost, :]
        return mx.put_along_axis(grouped, out, mx.array(-mx.inf), axis=-2).flatten(-2, -1)
