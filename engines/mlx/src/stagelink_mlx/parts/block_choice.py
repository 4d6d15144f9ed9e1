"""Attention in which an indexer chooses the blocks of positions that a row sees.

It makes no mask of causes and keeps no state; the caches do. The formulas are those of MiniMax-M3
as transformers computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ChosenBlocksAttention"]

_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
_INDEX = tuple(f"index_{one}" for one in ("q_proj", "k_proj", "q_norm", "k_norm"))


class ChosenBlocksAttention(nn.Module):
    """Attention to whole blocks of positions, or to all positions in layers without an indexer."""

    def __init__(self, made: Any, config: Mapping[str, Any]) -> None:
        """Take mlx_lm's matrices and norms, and the config's numbers."""
        super().__init__()
        self._chooses = "index_q_proj" in made
        for name in (*_PARTS, *(_INDEX if self._chooses else ())):
            self[name] = made[name]
        # layers.py puts the engine's own here; the indexer's heads turn by it, too.
        self.rope: Any = nn.Identity()
        self._heads, self._shared = config["num_attention_heads"], config["num_key_value_heads"]
        self._scale = config["head_dim"] ** -0.5
        self._index_heads, self._block = config["index_n_heads"], config["index_block_size"]
        self._used, self._near = config["index_topk_blocks"], config["index_local_blocks"]

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        """Return ``[1, rows, width]`` of rows ``[1, rows, width]``."""
        first = cache.offset
        queries = self.q_norm(_by_head(self.q_proj(rows), self._heads))
        keys = self.k_norm(_by_head(self.k_proj(rows), self._shared))
        values = _by_head(self.v_proj(rows), self._shared)
        queries, keys = (self.rope(one, offset=first) for one in (queries, keys))
        plain = cache.plain if self._chooses else cache
        keys, values = plain.update_and_fetch(keys, values)
        if self._chooses:
            mask = self._chosen(rows, mask, cache, first)
        seen = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self._scale, mask=mask
        )
        out: mx.array = self.o_proj(seen.swapaxes(1, 2).flatten(-2))
        return out

    def _chosen(self, rows: mx.array, mask: Any, cache: Any, first: int) -> Any:
        """Return ``[1, heads, rows, positions]``: what a row of a head sees, or ``mask`` for all.

        A block is worth its best position; those nearest to the row are always among the chosen.
        """
        index = self.index_k_norm(_by_head(self.index_k_proj(rows), 1))
        index = cache.index(self.rope(index, offset=first))
        count, size = rows.shape[1], index.shape[2]
        blocks = -(-size // self._block)
        if blocks <= self._used:
            return mask
        queries = self.index_q_norm(_by_head(self.index_q_proj(rows), self._index_heads))
        queries = self.rope(queries, offset=first).astype(mx.float32)
        scores = queries @ index.astype(mx.float32).swapaxes(-1, -2)
        at = mx.arange(first, first + count)[:, None]
        before = mx.arange(size)[None] <= at
        scores = mx.where(before, scores, -mx.inf)
        filled = [(0, 0)] * 3 + [(0, blocks * self._block - size)]
        scores = mx.pad(scores, filled, constant_values=-mx.inf)
        worth = mx.unflatten(scores, -1, (blocks, self._block)).max(axis=-1)
        own, numbers = at // self._block, mx.arange(blocks)[None]
        is_near = (numbers <= own) & (numbers > own - self._near)
        worth = mx.where(is_near, mx.inf, worth)
        best = mx.argpartition(-worth, kth=self._used - 1, axis=-1)[..., : self._used]
        kept = mx.put_along_axis(mx.zeros(worth.shape, mx.bool_), best, mx.array(True), axis=-1)
        # What is chosen for want of better lies after the row.
        seen = mx.repeat(kept, self._block, axis=-1)[..., :size] & before
        return mx.repeat(seen, self._heads // self._index_heads, axis=1)


def _by_head(values: mx.array, heads: int) -> mx.array:
    """Return ``[1, heads, rows, width]`` of ``[1, rows, heads * width]``."""
    return mx.unflatten(values, -1, (heads, -1)).swapaxes(1, 2)
