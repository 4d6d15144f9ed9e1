"""Phi-3-small's attention to blocks of positions, the same however a prompt is cut.

It reads no weights: the matrices are those of mlx_lm's attention, whose own blocks are counted from
the end of what a piece sees.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx import nn

__all__ = ["BlockSparseAttention"]


class BlockSparseAttention(nn.Module):
    """A row sees the last blocks, and of earlier ones every so many, other ones with each head."""

    def __init__(self, attention: Any) -> None:
        """Take the matrices and numbers of mlx_lm's attention."""
        super().__init__()
        self._heads, self._shared = attention.n_heads, attention.n_kv_heads
        self._scale, self._block = attention.scale, attention.blocksparse_block_size
        self._near = attention.blocksparse_num_local_blocks
        self._stride = attention.blocksparse_vert_stride
        self.query_key_value, self.dense = attention.query_key_value, attention.dense
        self.rope = attention.rope

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        """Return ``[1, rows, width]``; the mask is of this attention's own making."""
        del mask
        at, count = cache.offset, rows.shape[1]
        parts = self._heads // self._shared + 2
        packed = mx.unflatten(self.query_key_value(rows), -1, (self._shared, parts, -1))
        queries = packed[..., :-2, :].flatten(2, 3).swapaxes(1, 2)
        keys, values = (packed[..., part, :].swapaxes(1, 2) for part in (-2, -1))
        queries, keys = (self.rope(one, offset=at) for one in (queries, keys))
        keys, values = cache.update_and_fetch(keys, values)
        seen = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self._scale, mask=self._mask(at, count)
        )
        out: mx.array = self.dense(seen.swapaxes(1, 2).flatten(-2))
        return out

    def _mask(self, first: int, count: int) -> mx.array:
        """Return ``[heads, count, first + count]``: which positions a row of a head sees."""
        rows = mx.arange(first, first + count)[:, None]
        columns = mx.arange(first + count)[None]
        block, heads = columns // self._block, mx.arange(1, self._heads + 1)[:, None, None]
        is_near = rows // self._block - block < self._near
        seen: mx.array = (columns <= rows) & (is_near | ((block + heads) % self._stride == 0))
        return seen
