"""Kimi K3's residual stream in blocks: what layers, embedding and head read of the blocks before.

It reads no weights. A row is the sum of the block that is being made, and behind it what every
block before it came to; each layer mixes them anew. mlx_lm alone defines the formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.cache import recurrence_of
from stagelink_mlx.ends import Ends

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_mlx.families.recipes import Recipe

__all__ = ["ResidualBlockEnds", "ResidualBlockLayer"]


class ResidualBlockLayer(nn.Module):
    """One layer, on mlx_lm's modules: attention and feed-forward read a mixture of the blocks."""

    def __init__(self, made: Any, family: Family, n: int) -> None:
        """Take the parts of layer ``n``."""
        super().__init__()
        self.self_attn, self.mlp = made.self_attn, made.mlp
        self.input_layernorm = made.input_layernorm
        self.post_attention_layernorm = made.post_attention_layernorm
        self._parts, self._width = family.row_factor, family.width
        size = family.config["attn_res_block_size"]
        self._has_blocks = size is not None
        if self._has_blocks:
            # A block begins with every layer of the size; before it are those that began earlier.
            self._before, self._begins = -(-n // size), n % size == 0
            epsilon = family.config["rms_norm_eps"]
            for name in ("self_attention_res", "mlp_res"):
                self[f"{name}_proj"] = _Weight(1, self._width)
                self[f"{name}_norm"] = _Weight(self._width)
            self._epsilon = epsilon

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        """Return rows ``[1, n, parts * width]`` of rows of the same shape."""
        if not self._has_blocks:
            seen = rows + self._attended(rows, mask, cache)
            out: mx.array = seen + self.mlp(self.post_attention_layernorm(seen))
            return out.astype(rows.dtype)
        parts = mx.unflatten(rows, -1, (self._parts, self._width))
        total, blocks = parts[..., 0, :], parts[..., 1 : 1 + self._before, :]
        added = self._attended(self._mixed("self_attention_res", blocks, total), mask, cache)
        if self._begins:
            blocks = mx.concatenate([blocks, total[..., None, :]], axis=-2)
        total = added if self._begins else total + added
        fed = self.mlp(self.post_attention_layernorm(self._mixed("mlp_res", blocks, total)))
        total = (total + fed).astype(rows.dtype)
        empty = parts[..., 1 + blocks.shape[-2] :, :]
        return mx.concatenate([total[..., None, :], blocks, empty], axis=-2).flatten(-2)

    def _attended(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        recurrent = recurrence_of(cache)
        if recurrent is not None:
            # What a cut runs again are these rows: the mixture, and not all that it is made of.
            recurrent.begin(rows)
        attended: mx.array = self.self_attn(self.input_layernorm(rows), mask, cache)
        return attended.astype(rows.dtype)

    def _mixed(self, name: str, blocks: mx.array, total: mx.array) -> mx.array:
        norm, projection = self[f"{name}_norm"].weight, self[f"{name}_proj"].weight
        return _mixture(blocks, total, norm, projection, self._epsilon)


class ResidualBlockEnds(Ends):
    """The two ends: an embedded row with no block behind it, and a last mixture for the head."""

    def __init__(self, model: Any, family: Family, recipe: Recipe, dtype: mx.Dtype) -> None:
        """Take the modules of mlx_lm's whole model; see ``Ends``."""
        super().__init__(model, family, recipe, dtype)
        self._body, self._parts, self._width = recipe.body, family.row_factor, family.width
        size, self._res_epsilon = family.config["attn_res_block_size"], family.norm_epsilon
        self._has_blocks = size is not None
        if self._has_blocks:
            self[self._body]["output_attn_res_proj"] = _Weight(1, self._width)
            self[self._body]["output_attn_res_norm"] = _Weight(self._width)

    def embed(self, ids: mx.array, first: int, *before: Any) -> mx.array:
        """Return the rows ``[1, ids, parts * width]`` of token ids."""
        rows = super().embed(ids, first, *before)
        return mx.pad(rows, [(0, 0), (0, 0), (0, (self._parts - 1) * self._width)])

    def head(self, rows: mx.array) -> mx.array:
        """Return float32 logits ``[rows, vocab]`` of rows ``[rows, parts * width]``."""
        if not self._has_blocks:
            return super().head(rows)
        parts = mx.unflatten(rows, -1, (self._parts, self._width))
        body = self[self._body]
        norm, projection = body["output_attn_res_norm"], body["output_attn_res_proj"]
        total, blocks = parts[..., 0, :], parts[..., 1:, :]
        mixed = _mixture(blocks, total, norm.weight, projection.weight, self._res_epsilon)
        return super().head(mixed)


class _Weight(nn.Module):
    """A weight under its name; two of them are used as one, and neither for a product alone."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = mx.zeros(shape)


def _mixture(
    blocks: mx.array, total: mx.array, norm: mx.array, projection: mx.array, epsilon: float
) -> mx.array:
    """Return ``[..., width]``: blocks ``[..., count, width]`` and the total, by a softmax of worth.

    A part is worth the product of its normed row with a vector.
    """
    if blocks.shape[-2] == 0:
        return total
    parts = mx.concatenate([blocks, total[..., None, :]], axis=-2)
    wide = parts.astype(mx.float32)
    vector = norm.astype(mx.float32) * projection.astype(mx.float32).reshape(-1)
    roots = mx.rsqrt(mx.mean(mx.square(wide), axis=-1) + epsilon)
    shares = mx.softmax((wide * vector).sum(axis=-1) * roots, axis=-1)
    return (shares[..., None] * wide).sum(axis=-2).astype(total.dtype)
