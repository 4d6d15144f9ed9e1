"""The two ends of a model on the lead: token ids become rows, the last layer's rows logits.

It holds the modules under the names of their tensors, and reads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_mlx.recipes import Recipe

__all__ = ["Ends"]

_ROOT = "root"


class Ends(nn.Module):
    """Embedding, final norm and head, with the factors that mlx_lm's whole model has there."""

    def __init__(self, model: Any, family: Family, recipe: Recipe, dtype: mx.Dtype) -> None:
        """Take the modules of mlx_lm's whole model.

        Args:
            model: The model.
            family: Its numbers.
            recipe: Which factors it has.
            dtype: Of the rows.
        """
        super().__init__()
        body = model.model
        self.model = {"embed_tokens": body.embed_tokens, "norm": body.norm}
        if not family.tied:
            self.lm_head = getattr(model, "language_model", model).lm_head
        self._dtype = dtype
        self._scale = _embedding_scale(family, recipe, dtype)
        self._divisor, self._factor, self._cap = (
            family.config[field] if field else None
            for field in (recipe.logits_divisor, recipe.logits_factor, recipe.logits_cap)
        )

    def embed(self, ids: mx.array) -> mx.array:
        """Return the rows ``[1, ids, width]`` of token ids."""
        rows: mx.array = self.model["embed_tokens"](ids)[None].astype(self._dtype)
        return rows if self._scale is None else rows * self._scale

    def head(self, rows: mx.array) -> mx.array:
        """Return float32 logits ``[rows, vocab]`` of rows ``[rows, width]``."""
        normed = self.model["norm"](rows)
        head = self.get("lm_head")
        embedding = self.model["embed_tokens"]
        logits: mx.array = embedding.as_linear(normed) if head is None else head(normed)
        if self._divisor is not None:
            logits = logits / self._divisor
        if self._factor is not None:
            logits = logits * self._factor
        if self._cap is not None:
            logits = mx.tanh(logits / self._cap) * self._cap
        return logits.astype(mx.float32)


def _embedding_scale(family: Family, recipe: Recipe, dtype: mx.Dtype) -> mx.array | None:
    """Return what embedded rows are multiplied by."""
    if not recipe.embedding_scale:
        return None
    is_root = recipe.embedding_scale == _ROOT
    scale = family.width**0.5 if is_root else family.config[recipe.embedding_scale]
    return mx.array(scale, dtype)
