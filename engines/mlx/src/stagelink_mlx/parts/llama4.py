"""Llama 4's attention, as transformers computes it, with the matrices of mlx_lm's layer.

It makes no mask and keeps no state. mlx_lm's own norms queries and keys with an epsilon of its own,
and takes every fourth layer for the one that knows no positions, whatever the config says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Growth = Callable[[int, int, mx.Dtype], mx.array]

__all__ = ["TemperedAttention", "growth_by_steps"]


class TemperedAttention(nn.Module):
    """Attention whose queries grow with the position in layers that know no positions.

    The growth is that of arXiv 2501.19399, taken in steps of ``floor_scale`` positions.
    """

    def __init__(self, made: Any, config: Mapping[str, Any], *, turns: bool) -> None:
        """Take mlx_lm's matrices.

        Args:
            made: mlx_lm's attention.
            config: As understood.
            turns: Whether heads turn by position in this layer.
        """
        super().__init__()
        self.q_proj, self.k_proj = made.q_proj, made.k_proj
        self.v_proj, self.o_proj = made.v_proj, made.o_proj
        self._heads = config["num_attention_heads"], config["num_key_value_heads"]
        self._scale = config["head_dim"] ** -0.5
        self._epsilon = config["rms_norm_eps"] if turns and config["use_qk_norm"] else None
        grows = config["attn_temperature_tuning"] and not turns
        self._growth = (config["floor_scale"], config["attn_scale"]) if grows else None
        if turns:
            # layers.py puts the engine's own here.
            self.rope: Any = nn.Identity()

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        """Return ``[1, rows, width]`` of rows ``[1, rows, width]``."""
        heads, shared = self._heads
        first = cache.offset
        queries = _split(self.q_proj(rows), heads)
        keys, values = (_split(one(rows), shared) for one in (self.k_proj, self.v_proj))
        if "rope" in self:
            queries, keys = (self.rope(one, offset=first) for one in (queries, keys))
        if self._epsilon is not None:
            queries, keys = (mx.fast.rms_norm(one, None, self._epsilon) for one in (queries, keys))
        if self._growth is not None:
            queries = (queries * self._grown(first, rows.shape[1])).astype(queries.dtype)
        keys, values = cache.update_and_fetch(keys, values)
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self._scale, mask=mask
        )
        out: mx.array = self.o_proj(found.transpose(0, 2, 1, 3).reshape(*rows.shape[:2], -1))
        return out

    def _grown(self, first: int, count: int) -> mx.array:
        """Return ``[count, 1]``: the factor of each row's queries."""
        step, scale = self._growth or (1, 0.0)
        positions = mx.arange(first + 1, first + count + 1).astype(mx.float32)
        return (mx.log1p(mx.floor(positions / step)) * scale + 1.0)[:, None]


def growth_by_steps(beta: float, step: int) -> Growth:
    """Return what gives the factors ``[rows, 1]`` of the queries from a position on (Mistral 4)."""

    def grown(first: int, count: int, dtype: mx.Dtype) -> mx.array:
        positions = mx.arange(first, first + count).astype(mx.float32)
        factors: mx.array = 1.0 + beta * mx.log(1.0 + mx.floor(positions / step))
        return factors[:, None].astype(dtype)

    return grown


def _split(rows: mx.array, heads: int) -> mx.array:
    return rows.reshape(*rows.shape[:2], heads, -1).transpose(0, 2, 1, 3)
