"""The layers of a stage over one batch of rows, and the lead's embedding and head.

It knows batches and slots, no plan and no bytes; the layer formulas are in layers.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stagelink_numpy.invariance import RowScratch, attend_by_row, find_row_step
from stagelink_numpy.layers import AttentionScratch, attend, rms_norm, rotate, swiglu
from stagelink_numpy.memory import aligned_zeros, carve
from stagelink_numpy.rope import rope_tables

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagelink.engine import Batch, EngineSettings, LlamaFamily
    from stagelink_numpy.cache import Cache
    from stagelink_numpy.memory import Floats
    from stagelink_numpy.weights import EndWeights, LayerWeights, StageWeights


@dataclasses.dataclass(frozen=True, slots=True)
class Scratch:
    """Flat arrays for everything between a round's rows in and its rows out, made at load."""

    rows: Floats
    normed: Floats
    qkv: Floats
    attended: Floats
    gate_up: Floats
    gated: Floats
    change: Floats
    spare: Floats
    attention: AttentionScratch

    @classmethod
    def make(cls, family: LlamaFamily, settings: EngineSettings) -> Scratch:
        """Allocate for ``settings.rows_max`` rows and ``settings.context`` positions."""
        step = find_row_step(family, settings)
        rows = -(-settings.rows_max // step) * step
        heads, head_width = family.heads, family.head_width
        turned = (heads + family.kv_heads) * head_width
        return cls(
            rows=aligned_zeros(rows * family.width),
            normed=aligned_zeros(rows * family.width),
            qkv=aligned_zeros(rows * (turned + family.kv_heads * head_width)),
            attended=aligned_zeros(rows * heads * head_width),
            gate_up=aligned_zeros(rows * 2 * family.ffn_width),
            gated=aligned_zeros(rows * family.ffn_width),
            change=aligned_zeros(rows * family.width),
            spare=aligned_zeros(rows * max(family.width, turned)),
            attention=AttentionScratch.make(family, settings),
        )


class Model:
    """The weights, the tables and the scratch of one stage, and what they compute."""

    def __init__(
        self, family: LlamaFamily, weights: StageWeights, settings: EngineSettings
    ) -> None:
        """Make the position tables and the scratch; the weights are there already."""
        self._family = family
        self._layers = weights.layers
        self._ends = weights.ends
        self._cosine, self._sine = rope_tables(family, settings.context)
        self._scratch = Scratch.make(family, settings)
        self._row_step = find_row_step(family, settings)
        self._by_row = RowScratch.make(family, settings) if settings.batch_invariant else None

    def rows(self, count: int) -> Floats:
        """Return the scratch ``[count, width]`` that a batch's rows are put in and taken from."""
        return carve(self._scratch.rows, count, self._family.width)

    def embed(self, token_ids: npt.NDArray[np.int64], out: Floats) -> None:
        """Write the embeddings of checked ids into ``out`` ``[rows, width]``; lead only."""
        np.take(self._lead_ends().embed, token_ids, axis=0, out=out, mode="clip")

    def head(self, rows: Floats) -> Floats:
        """Return new float32 logits ``[rows, vocab]`` of the last layer's rows; lead only."""
        ends = self._lead_ends()
        count, rows = len(rows), self._padded(rows)
        normed = carve(self._scratch.normed, *rows.shape)
        epsilon = self._family.norm_epsilon
        rms_norm(rows, ends.final_norm, epsilon, self._scratch.spare, normed)
        logits = aligned_zeros(len(rows), self._family.vocab)
        np.matmul(normed, ends.head.T, out=logits)
        return logits[:count]

    def run(self, batch: Batch, cache: Cache, rows: Floats) -> None:
        """Run a batch's rows, ``self.rows(n)``, through every own layer, in place."""
        rows = self._padded(rows)
        positions = np.zeros(len(rows), dtype=np.int64)
        for piece in batch.pieces:
            last = piece.first + piece.end - piece.begin
            positions[piece.begin : piece.end] = np.arange(piece.first, last)
        turns = self._cosine[positions][:, None, :], self._sine[positions][:, None, :]
        for index, weights in enumerate(self._layers):
            self._attention(index, batch, cache, rows, turns)
            self._feed_forward(weights, rows)

    def _attention(
        self, index: int, batch: Batch, cache: Cache, rows: Floats, turns: tuple[Floats, Floats]
    ) -> None:
        """Add one layer's attention to the rows and put their keys and values into the cache."""
        family, scratch, count = self._family, self._scratch, len(rows)
        weights = self._layers[index]
        normed = carve(scratch.normed, *rows.shape)
        rms_norm(rows, weights.attention_norm, family.norm_epsilon, scratch.spare, normed)
        qkv = carve(scratch.qkv, count, weights.qkv.shape[1])
        np.matmul(normed, weights.qkv, out=qkv)
        if weights.qkv_bias is not None:
            np.add(qkv, weights.qkv_bias, out=qkv)
        heads = qkv.reshape(count, -1, family.head_width)
        queries = heads[:, : family.heads]
        keys = heads[:, family.heads : family.heads + family.kv_heads]
        values = heads[:, family.heads + family.kv_heads :]
        for part, norm in ((queries, weights.q_norm), (keys, weights.k_norm)):
            if norm is not None:
                rms_norm(part, norm, family.norm_epsilon, scratch.spare, part)
        rotate(heads[:, : family.heads + family.kv_heads], *turns, scratch.spare)
        attended = carve(scratch.attended, count, family.heads, family.head_width)
        attended[batch.pieces[-1].end :] = 0.0
        for piece in batch.pieces:
            span, last = slice(piece.begin, piece.end), piece.first + piece.end - piece.begin
            held_keys, held_values = cache.layer(index, cache.slot(piece.stream))
            held_keys[:, piece.first : last] = keys[span].transpose(1, 0, 2)
            held_values[:, piece.first : last] = values[span].transpose(1, 0, 2)
            if self._by_row is not None:
                held = held_keys, held_values
                attend_by_row(queries[span], held, piece.first, self._by_row, attended[span])
                continue
            past = held_keys[:, :last], held_values[:, :last]
            attend(queries[span], *past, scratch.attention, attended[span])
        change = carve(scratch.change, *rows.shape)
        np.matmul(attended.reshape(count, -1), weights.attention_out, out=change)
        np.add(rows, change, out=rows)

    def _feed_forward(self, weights: LayerWeights, rows: Floats) -> None:
        """Add one layer's SwiGLU block to the rows."""
        family, scratch, count = self._family, self._scratch, len(rows)
        normed = carve(scratch.normed, *rows.shape)
        rms_norm(rows, weights.ffn_norm, family.norm_epsilon, scratch.spare, normed)
        gate_up = carve(scratch.gate_up, count, 2 * family.ffn_width)
        np.matmul(normed, weights.gate_up, out=gate_up)
        gated = carve(scratch.gated, count, family.ffn_width)
        swiglu(gate_up, gated)
        change = carve(scratch.change, *rows.shape)
        np.matmul(gated, weights.down, out=change)
        np.add(rows, change, out=rows)

    def _padded(self, rows: Floats) -> Floats:
        """Return ``rows``, which begin the scratch, with zeros behind in batch-invariant mode."""
        count = len(rows)
        padded = -(-count // self._row_step) * self._row_step
        if padded == count:
            return rows
        own = carve(self._scratch.rows, padded, self._family.width)
        own[count:] = 0.0
        return own

    def _lead_ends(self) -> EndWeights:
        """Return the embedding, final norm and head, which the engine checked to be here."""
        if self._ends is None:
            raise AssertionError("a follower has no embedding and no head")
        return self._ends
