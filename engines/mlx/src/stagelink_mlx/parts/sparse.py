"""DeepSeek's sparse attention: an indexer chooses which positions a row of a latent layer sees.

It makes no mask and keeps no state of its own: the indexer's keys lie beside those that turn. The
formulas are those of DeepSeek-V3.2 (arXiv 2512.02556, 2.1) as transformers computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SparseLatentAttention"]

# transformers' epsilon of the norm of the indexer's keys, which is none of the config's.
_EPSILON = 1e-6


class SparseLatentAttention(nn.Module):
    """Latent attention to the positions that the indexer gives the highest scores."""

    def __init__(self, made: Any, config: Mapping[str, Any], scale: float) -> None:
        """Take mlx_lm's matrices.

        Args:
            made: mlx_lm's attention.
            config: As understood.
            scale: Of the softmax.
        """
        super().__init__()
        self.q_a_proj, self.q_a_layernorm = made.q_a_proj, made.q_a_layernorm
        self.q_b_proj, self.o_proj = made.q_b_proj, made.o_proj
        self.kv_a_proj_with_mqa = made.kv_a_proj_with_mqa
        self.kv_a_layernorm = made.kv_a_layernorm
        self.embed_q, self.unembed_out = made.embed_q, made.unembed_out
        self.indexer = _Indexer(made.indexer, config)
        # layers.py puts the engine's own here, and corrections give one to the indexer.
        self.rope: Any = nn.Identity()
        self._heads, self._scale = config["num_attention_heads"], scale
        self._plain, self._latent = config["qk_nope_head_dim"], config["kv_lora_rank"]
        self._turned = config["qk_rope_head_dim"]

    def __call__(self, rows: mx.array, mask: mx.array | None, cache: Any) -> mx.array:
        """Return ``[1, rows, width]`` of rows ``[1, rows, width]``; a mask is an array."""
        _, count, _ = rows.shape
        first = cache.offset
        small = self.q_a_layernorm(self.q_a_proj(rows))
        queries = self.q_b_proj(small).reshape(1, count, self._heads, -1).transpose(0, 2, 1, 3)
        plain, turned = mx.split(queries, [self._plain], axis=-1)
        latent, keys = mx.split(self.kv_a_proj_with_mqa(rows), [self._latent], axis=-1)
        latent = self.kv_a_layernorm(latent)[:, None]
        turned, keys = (self.rope(one, offset=first) for one in (turned, keys[:, None]))
        beside = mx.concatenate([keys, self.indexer.keyed(rows, first)], axis=-1)
        latent, beside = cache.update_and_fetch(latent, beside)
        keys, indexed = mx.split(beside, [self._turned], axis=-1)
        seen = self.indexer.chosen(rows, small, indexed, mask, first)
        scores = (turned * self._scale) @ keys.swapaxes(-1, -2)
        if seen is not None:
            lowest = mx.array(mx.finfo(scores.dtype).min, scores.dtype)
            scores = mx.where(seen, scores, lowest)
        out: mx.array = self.o_proj(self._attended(plain, latent, scores))
        return out

    def _attended(self, plain: mx.array, latent: mx.array, scores: mx.array) -> mx.array:
        """Return ``[1, rows, heads * value width]``; one row attends to the latents themselves."""
        alone = plain.shape[2] == 1
        if alone:
            queries, keys, values = self.embed_q(plain), latent, latent
        else:
            queries, keys = plain, self.embed_q(latent, transpose=False)
            values = self.unembed_out(latent)
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self._scale, mask=scores
        )
        if alone:
            found = self.unembed_out(found)
        joined: mx.array = found.transpose(0, 2, 1, 3).reshape(1, plain.shape[2], -1)
        return joined


class _Indexer(nn.Module):
    """Scores every position for a row by small heads that share one key."""

    def __init__(self, made: Any, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.wq_b, self.wk, self.k_norm = made.wq_b, made.wk, made.k_norm
        self.weights_proj, self.k_norm.eps = made.weights_proj, _EPSILON
        self.rope: Any = nn.Identity()
        self._heads, self._used = config["index_n_heads"], config["index_topk"]
        self._scale = config["index_head_dim"] ** -0.5

    def keyed(self, rows: mx.array, first: int) -> mx.array:
        """Return the keys ``[1, 1, rows, index width]`` of rows from position ``first`` on."""
        keys: mx.array = self.rope(self.k_norm(self.wk(rows))[:, None], offset=first)
        return keys

    def chosen(
        self, rows: mx.array, small: mx.array, keys: mx.array, mask: mx.array | None, first: int
    ) -> mx.array | None:
        """Return which positions each row sees, or ``mask`` where it sees all before it.

        Args:
            rows: ``[1, rows, width]``.
            small: The normed latent queries.
            keys: Those of all positions.
            mask: Which positions lie before each row.
            first: The first row's position.
        """
        if keys.shape[2] <= self._used:
            return mask
        _, count, _ = rows.shape
        queries = self.wq_b(small).reshape(1, count, self._heads, -1).transpose(0, 2, 1, 3)
        queries = self.rope(queries, offset=first)
        scores = mx.maximum(queries @ keys.swapaxes(-1, -2) * self._scale, 0)
        shares = self.weights_proj(rows).astype(mx.float32) * self._heads**-0.5
        total = mx.sum(scores * shares.transpose(0, 2, 1)[..., None], axis=1, keepdims=True)
        if mask is not None:
            total = mx.where(mask, total, -mx.inf)
        best = mx.argpartition(total, kth=-self._used, axis=-1)[..., -self._used :]
        seen = mx.put_along_axis(mx.zeros(total.shape, mx.bool_), best, mx.array(True), axis=-1)
        return seen if mask is None else seen & mask
