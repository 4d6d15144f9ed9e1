"""The two ends of a model on the lead: token ids become rows, the last layer's rows logits.

It holds the modules under the names of their tensors, and reads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.parts.ngrams import NgramEmbedding

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_mlx.families.recipes import Recipe

__all__ = ["Ends", "at_path", "body_of"]

_ROOT = "root"
_ROUNDED_ROOT = "rounded_root"


def body_of(model: Any, recipe: Recipe) -> Any:
    """Return the module of mlx_lm's whole model that has the layers, the embedding and the norm."""
    return getattr(getattr(model, "language_model", model), recipe.body)


def at_path(module: Any, path: str) -> Any:
    """Return what lies at ``one.two`` in a module."""
    for name in path.split("."):
        module = getattr(module, name)
    return module


class Ends(nn.Module):
    """Embedding, final norm and head, with the factors that mlx_lm's whole model has there.

    Attributes:
        neighbours: Of how many last tokens a row is made, where it is of more than its own; else 0.
    """

    def __init__(self, model: Any, family: Family, recipe: Recipe, dtype: mx.Dtype) -> None:
        """Take the modules of mlx_lm's whole model.

        Args:
            model: The model.
            family: Its numbers.
            recipe: Which factors it has.
            dtype: Of the rows.
        """
        super().__init__()
        body, self._at = body_of(model, recipe), (recipe.body, recipe.embedding, recipe.norm)
        names = (recipe.embedding, recipe.norm, recipe.positions, recipe.loops)
        held = [name for name in names if name]
        final = None if recipe.final is None else {recipe.norm: recipe.final(family.config)}
        self[recipe.body] = {name: body[name] for name in held if name in body} | (final or {})
        self.neighbours = 0
        if recipe.ngrams:
            ngrams = NgramEmbedding(body[recipe.embedding], family.config)
            self[recipe.body][recipe.embedding] = ngrams
            self.neighbours = ngrams.neighbours
        self._is_normed = recipe.is_embedding_normed
        epsilon = recipe.embedding_epsilon
        self._epsilon = family.config[epsilon] if epsilon else None
        self._positions = recipe.positions
        self._head = "" if family.tied else recipe.head
        if self._head:
            outer = getattr(model, "language_model", model)
            # A module that always ties has none for the models of its family that do not.
            made = hasattr(outer, self._head.partition(".")[0])
            head = at_path(outer, self._head) if made else None
            if not isinstance(head, nn.Module):
                head = nn.Linear(family.width, family.vocab, bias=False)
            inner, _, name = self._head.rpartition(".")
            if inner:
                self.setdefault(inner, {})
            (self[inner] if inner else self)[name] = head
        self._dtype = dtype
        self._silent = mx.array(recipe.silent) if recipe.silent else None
        self._scale = _embedding_scale(family, recipe, dtype)
        self._divisor, self._factor, self._cap = (
            family.config[field] if field else None
            for field in (recipe.logits_divisor, recipe.logits_factor, recipe.logits_cap)
        )

    def embed(self, ids: mx.array, first: int, *before: Any) -> mx.array:
        """Return the rows ``[1, ids, width]`` of token ids from position ``first`` on.

        ``before`` is what a stream keeps of its last tokens, where ``neighbours`` says so.
        """
        body, embedding, norm = self._at
        rows: mx.array = self[body][embedding](ids, *before)[None].astype(self._dtype)
        if self._positions:
            table = self[body][self._positions]
            rows = rows + table(mx.arange(first, first + ids.size))[None].astype(self._dtype)
        if self._epsilon is not None:
            rows = mx.fast.rms_norm(rows, None, self._epsilon)
        if self._is_normed:
            rows = self[body][norm](rows)
        return rows if self._scale is None else rows * self._scale

    def head(self, rows: mx.array) -> mx.array:
        """Return float32 logits ``[rows, vocab]`` of rows ``[rows, width]``."""
        body, embedding, norm = self._at
        normed = self[body][norm](rows)
        if self._head:
            inner, _, name = self._head.rpartition(".")
            head = (self[inner] if inner else self)[name]
        else:
            head = self[body][embedding].as_linear
        logits: mx.array = head(normed)
        if self._divisor is not None:
            logits = logits / self._divisor
        if self._factor is not None:
            logits = logits * self._factor
        if self._cap is not None:
            logits = mx.tanh(logits / self._cap) * self._cap
        logits = logits.astype(mx.float32)
        if self._silent is not None:
            logits[..., self._silent] = mx.finfo(mx.float32).min
        return logits


def _embedding_scale(family: Family, recipe: Recipe, dtype: mx.Dtype) -> mx.array | None:
    """Return what embedded rows are multiplied by."""
    if not recipe.embedding_scale:
        return None
    is_root = recipe.embedding_scale in (_ROOT, _ROUNDED_ROOT)
    scale = family.width**0.5 if is_root else family.config[recipe.embedding_scale]
    if recipe.embedding_scale == _ROUNDED_ROOT:
        return mx.array(scale, mx.bfloat16).astype(dtype)
    return mx.array(scale, dtype)
