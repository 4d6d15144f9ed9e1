"""Batch-invariant mode: padding that a probe shows to be enough, and attention row by row.

It promises nothing that the probe did not show; where the bits come from: docs/exactness.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import ConfigError
from stagelink_numpy.memory import aligned_zeros, carve

if TYPE_CHECKING:
    from stagelink.engine import EngineSettings, LlamaFamily
    from stagelink_numpy.memory import Floats

# Keys and values are taken in blocks of this many positions, whatever a stream's length is.
KEY_BLOCK = 128
# Query rows whose scores are held at once; each is multiplied by itself.
_QUERY_ROWS = 8
# Counts that a batch's rows may be padded to a multiple of.
_STEPS = (4, 8, 16)
_MULTIPLES = (1, 2, 3, 4, 5, 7, 8)
_OUT_MAX = 4096
_SEED = 7


def find_row_step(family: LlamaFamily, settings: EngineSettings) -> int:
    """Return the count that batches are padded to a multiple of; 1 where the mode is off.

    Raises:
        ConfigError: ``engine_invariance`` where no count is enough with this BLAS.
    """
    if not settings.batch_invariant:
        return 1
    width, inner = family.width, family.ffn_width
    queries = family.heads * family.head_width
    fused = queries + 2 * family.kv_heads * family.head_width
    shapes = ((width, fused), (queries, width), (width, 2 * inner), (inner, width))
    step = _probed(shapes, (width, family.vocab), settings.rows_max)
    if step is None:
        raise ConfigError(
            "numpy engine: batch-invariant mode: expected a count of rows up to "
            f"{_STEPS[-1]} that products can be padded to, got none with this BLAS; "
            "start without --batch-invariant",
            reason="engine_invariance",
        )
    return step


@functools.cache
def _probed(
    shapes: tuple[tuple[int, int], ...], head: tuple[int, int], rows_max: int
) -> int | None:
    """Probe with random numbers; the machine does not change under a process."""
    random = np.random.default_rng(_SEED)
    for step in _STEPS:
        most = max(step * _MULTIPLES[-1], -(-rows_max // step) * step)
        counts = [*(step * multiple for multiple in _MULTIPLES), most]
        plain = all(_agrees(random, shape, counts, turned=False) for shape in shapes)
        if plain and _agrees(random, head, counts, turned=True):
            return step
    return None


def _agrees(
    random: np.random.Generator, shape: tuple[int, int], counts: list[int], *, turned: bool
) -> bool:
    """Whether a row has the same bits for every count of rows, and at any place among them."""
    inner, out = shape[0], min(shape[1], _OUT_MAX)
    weights = aligned_zeros(out, inner) if turned else aligned_zeros(inner, out)
    weights[...] = random.standard_normal(weights.shape, dtype=np.float32)
    matrix = weights.T if turned else weights
    rows = aligned_zeros(counts[-1], inner)
    rows[...] = random.standard_normal(rows.shape, dtype=np.float32)
    whole, norms = rows @ matrix, np.square(rows).mean(axis=-1)
    own = aligned_zeros(counts[-1], inner)
    for count in counts:
        for begin in (0, counts[-1] - count):
            part = slice(begin, begin + count)
            taken = own[:count]
            taken[...] = rows[part]
            if not np.array_equal(taken @ matrix, whole[part]):
                return False
            if not np.array_equal(np.square(taken).mean(axis=-1), norms[part]):
                return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class RowScratch:
    """Flat arrays for the scores and the blocks' results of a few rows."""

    scores: Floats
    results: Floats

    @classmethod
    def make(cls, family: LlamaFamily, settings: EngineSettings) -> RowScratch:
        """Allocate for ``settings.context`` positions."""
        blocks = -(-settings.context // KEY_BLOCK)
        heads = _QUERY_ROWS * family.heads * blocks
        return cls(aligned_zeros(heads * KEY_BLOCK), aligned_zeros(heads * family.head_width))


def attend_by_row(
    queries: Floats, past: tuple[Floats, Floats], first: int, scratch: RowScratch, out: Floats
) -> None:
    """Write the attention of one stream's new rows into ``out``; a row's bits are its own.

    Every product is of one row's group of heads and one block of positions, so all of them have one
    shape whatever the round is; the blocks' sums are added in order, and a block that a row does
    not see adds zeros.

    Args:
        queries: ``[rows, heads, head_width]``, already turned.
        past: Keys and values ``[kv_heads, positions, head_width]``: the whole slot, a multiple of
            ``KEY_BLOCK`` positions; what is not the stream's is finite.
        first: Position of the first row.
        scratch: Room for the scores.
        out: ``[rows, heads, head_width]``.
    """
    count, heads, width = queries.shape
    keys, values = past
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    scale = np.float32(1.0 / math.sqrt(width))
    for begin in range(0, count, _QUERY_ROWS):
        end = min(begin + _QUERY_ROWS, count)
        rows, last = end - begin, first + end
        blocks = -(-last // KEY_BLOCK)
        scores = carve(scratch.scores, rows, kv_heads, blocks, group, KEY_BLOCK)
        asked = queries[begin:end].reshape(rows, kv_heads, 1, group, width)
        seen = blocks * KEY_BLOCK
        block_keys = keys[:, :seen].reshape(kv_heads, blocks, KEY_BLOCK, width)
        block_values = values[:, :seen].reshape(kv_heads, blocks, KEY_BLOCK, width)
        np.matmul(asked, block_keys.transpose(0, 1, 3, 2), out=scores)
        scores *= scale
        at = np.arange(first + begin, last).reshape(rows, 1, 1, 1, 1)
        hidden = np.arange(seen).reshape(1, 1, blocks, 1, KEY_BLOCK) > at
        np.copyto(scores, np.float32(-np.inf), where=hidden)
        scores -= scores.max(axis=(2, 4), keepdims=True)
        np.exp(scores, out=scores)
        parts = carve(scratch.results, rows, kv_heads, blocks, group, width)
        np.matmul(scores, block_values, out=parts)
        totals = scores.sum(axis=-1, keepdims=True)
        target = out[begin:end].reshape(rows, kv_heads, group, width)
        target[...] = parts[:, :, 0]
        total = totals[:, :, 0].copy()
        for block in range(1, blocks):
            target += parts[:, :, block]
            total += totals[:, :, block]
        target /= total
