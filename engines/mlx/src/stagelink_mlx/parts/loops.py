"""Runs rows through all layers twice, with the matrices of mlx_lm's layers (IQuest-Coder's loop).

It keeps no state. In the second run a layer attends twice: to what it kept in the first, and to
what lies in a window of the second; a gate of each head mixes the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import mlx.core as mx

__all__ = ["run_twice"]


def run_twice(
    layers: Sequence[Any],
    gates: Sequence[Any],
    rows: mx.array,
    masks: Mapping[str, Any],
    caches: Sequence[Any],
) -> mx.array:
    """Return rows ``[1, rows, width]`` after both runs.

    Args:
        layers: All of the model, with ``self_attn`` and ``mlp``.
        gates: One a layer: a share of each head's queries ``[1, heads, rows, 1]``.
        rows: ``[1, rows, width]``.
        masks: Of kind ``"twice"``, and of ``"sliding"`` for the window.
        caches: ``Twice``, whose second one has the window.
    """
    first = []
    for layer, cache in zip(layers, caches, strict=True):
        queries, *new = layer.self_attn.get_qkv(layer.input_layernorm(rows), cache[0].offset)
        kept = cache[0].update_and_fetch(*new)
        first.append(kept)
        rows = _fed(layer, rows, layer.self_attn.attention(queries, *kept, masks["twice"]))
    for layer, gate, cache, kept in zip(layers, gates, caches, first, strict=True):
        queries, *new = layer.self_attn.get_qkv(layer.input_layernorm(rows), cache[1].offset)
        share = gate(queries)
        far = layer.self_attn.attention(queries, *kept, masks["twice"])
        near_by = cache[1].update_and_fetch(*new)
        near = layer.self_attn.attention(queries, *near_by, masks["sliding"])
        rows = _fed(layer, rows, share * far + (1 - share) * near)
    return rows


def _fed(layer: Any, rows: mx.array, seen: mx.array) -> mx.array:
    """Return rows with what heads ``[1, heads, rows, width]`` saw, behind the layer's block."""
    joined = seen.transpose(0, 2, 1, 3).reshape(*rows.shape[:2], -1)
    rows = rows + layer.self_attn.o_proj(joined)
    out: mx.array = rows + layer.mlp(layer.post_attention_layernorm(rows))
    return out
