"""The formulas of a Llama-family decoder layer, in float32 on numpy.

It knows no weights file, no stream and no slot: arrays in, arrays out, into memory of the caller.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from stagelink_numpy.memory import aligned_zeros, carve

if TYPE_CHECKING:
    from stagelink.engine import EngineSettings, LlamaFamily
    from stagelink_numpy.memory import Floats

# Query rows that attend together. It bounds the scores to this many rows times the context, and it
# is part of the composition rule: blocks are counted from a piece's first row (docs/exactness.md).
QUERY_ROWS = 64


def rms_norm(rows: Floats, weight: Floats, epsilon: float, scratch: Floats, out: Floats) -> None:
    """Write ``rows / sqrt(mean(rows^2) + epsilon) * weight`` over the last axis into ``out``.

    ``out`` may be ``rows``. ``scratch`` is flat and holds at least as many values as ``rows``.
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    squares = carve(scratch, *rows.shape)
    np.square(rows, out=squares)
    scale = squares.mean(axis=-1, keepdims=True)
    scale += np.float32(epsilon)
    np.sqrt(scale, out=scale)
    np.divide(rows, scale, out=out)
    np.multiply(out, weight, out=out)


def rotate(heads: Floats, cosine: Floats, sine: Floats, scratch: Floats) -> None:
    """Turn ``heads`` ``[rows, heads, head_width]`` in place by the rows' angles.

    The pairs are (i, i + head_width / 2), as the Hugging Face weights are laid out. ``cosine`` and
    ``sine`` are ``[rows, 1, head_width / 2]``. Source: Su et al. 2021, "RoFormer".
    """
    half = heads.shape[-1] // 2
    low, high = heads[..., :half], heads[..., half:]
    values = low.size
    kept = carve(scratch, *low.shape)
    product = carve(scratch[values:], *low.shape)
    np.multiply(low, sine, out=kept)
    np.multiply(low, cosine, out=low)
    np.multiply(high, sine, out=product)
    np.subtract(low, product, out=low)
    np.multiply(high, cosine, out=high)
    np.add(high, kept, out=high)


def swiglu(gate_up: Floats, out: Floats) -> None:
    """Write ``silu(gate) * up`` into ``out`` ``[rows, ffn_width]``.

    ``gate_up`` ``[rows, 2 * ffn_width]`` holds the gate in its first half and the up projection in
    its second; the gate is used up. Source: Shazeer 2020, "GLU Variants Improve Transformer".
    """
    width = out.shape[-1]
    gate, up = gate_up[:, :width], gate_up[:, width:]
    np.negative(gate, out=out)
    # Far below zero the exponential is infinite and the quotient is zero, which is what silu is.
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    np.add(out, np.float32(1.0), out=out)
    np.divide(gate, out, out=out)
    np.multiply(out, up, out=out)


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionScratch:
    """Flat arrays for a block's queries, scores and results, and the causal mask of a block."""

    queries: Floats
    scores: Floats
    results: Floats
    mask: Floats

    @classmethod
    def make(cls, family: LlamaFamily, settings: EngineSettings) -> AttentionScratch:
        """Allocate for ``settings.rows_max`` rows over ``settings.context`` positions."""
        block = min(settings.rows_max, QUERY_ROWS)
        values = family.heads * block * family.head_width
        scores = max(family.heads, family.heads // family.kv_heads * block) * settings.context
        above = np.full((QUERY_ROWS, QUERY_ROWS), -np.inf, dtype=np.float32)
        return cls(
            queries=aligned_zeros(values),
            scores=aligned_zeros(scores),
            results=aligned_zeros(values),
            mask=np.triu(above, k=1),
        )


def attend(
    queries: Floats, keys: Floats, values: Floats, scratch: AttentionScratch, out: Floats
) -> None:
    """Write the attention of one stream's new rows over its past and themselves into ``out``.

    Args:
        queries: ``[rows, heads, head_width]``, already turned; the last row sees every key.
        keys: ``[kv_heads, positions, head_width]``: the past and the new rows, in this order.
        values: As ``keys``.
        scratch: Room for a block.
        out: ``[rows, heads, head_width]``.
    """
    rows, heads, head_width = queries.shape
    kv_heads, positions, _ = keys.shape
    group = heads // kv_heads
    scale = np.float32(1.0 / math.sqrt(head_width))
    grouped = queries.reshape(rows, kv_heads, group, head_width)
    target = out.reshape(rows, kv_heads, group, head_width)
    for begin in range(0, rows, QUERY_ROWS):
        end = min(begin + QUERY_ROWS, rows)
        count = end - begin
        seen = positions - rows + end
        query = carve(scratch.queries, kv_heads, group, count, head_width)
        np.multiply(grouped[begin:end].transpose(1, 2, 0, 3), scale, out=query)
        result = carve(scratch.results, kv_heads, group, count, head_width)
        # One row: all heads in one call. Several: head by head, so that the scores stay small.
        step = kv_heads if count == 1 else 1
        for head in range(0, kv_heads, step):
            span = slice(head, head + step)
            scores = carve(scratch.scores, step, group, count, seen)
            past = keys[span, :seen], values[span, :seen]
            _attend_block(query[span], past, scratch.mask, scores, result[span])
        target[begin:end] = result.transpose(2, 0, 1, 3)


def _attend_block(
    query: Floats, past: tuple[Floats, Floats], mask: Floats, scores: Floats, result: Floats
) -> None:
    """Softmax of one block's masked scores, times the values; every argument starts with heads."""
    heads, group, count, seen = scores.shape
    keys, values = past
    flat = scores.reshape(heads, group * count, seen)
    np.matmul(query.reshape(heads, group * count, -1), keys.transpose(0, 2, 1), out=flat)
    if count > 1:
        scores[..., seen - count :] += mask[:count, :count]
    flat -= flat.max(axis=-1, keepdims=True)
    np.exp(flat, out=flat)
    total = flat.sum(axis=-1, keepdims=True)
    weighted = result.reshape(heads, group * count, -1)
    np.matmul(flat, values, out=weighted)
    weighted /= total
