"""The numpy engine with one fault in one layer, named by an environment variable.

It is what a verification must find: each fault is one that somebody has made in a real engine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink_numpy import NumpyEngine
from stagelink_numpy import model as numpy_model

if TYPE_CHECKING:
    from collections.abc import Callable

FAULT = "STAGELINK_TEST_FAULT"


class BrokenEngine(NumpyEngine):
    """The fault is in the last own layer, where the least is left to make it grow."""

    def load(self, progress: Any = None) -> None:
        super().load(progress)
        assert self._loaded is not None
        model = self._loaded[0]
        FAULTS[os.environ[FAULT]](model, model._layers[-1])


def _scale(model: Any, layer: Any) -> None:  # noqa: ARG001
    """A quantization scale that is off by 1 %."""
    layer.down[...] *= np.float32(1.01)


def _dropped_norm(model: Any, layer: Any) -> None:  # noqa: ARG001
    """The rows reach the feed-forward block as they are."""
    real = numpy_model.rms_norm

    def rms_norm(rows: Any, weight: Any, epsilon: float, spare: Any, out: Any) -> None:
        if weight is layer.ffn_norm:
            out[...] = rows
        else:
            real(rows, weight, epsilon, spare, out)

    numpy_model.rms_norm = rms_norm


def _forgotten_one(model: Any, layer: Any) -> None:  # noqa: ARG001
    """A norm's weights are meant as 1 + w."""
    layer.attention_norm[...] -= np.float32(1)


def _late_position(model: Any, layer: Any) -> None:  # noqa: ARG001
    """Every round but a stream's first begins one position too late."""
    real, cosine, sine = model.run, model._cosine, model._sine

    def run(batch: Any, cache: Any, rows: Any) -> None:
        late = any(piece.first > 0 for piece in batch.pieces)
        model._cosine = np.roll(cosine, -1, 0) if late else cosine
        model._sine = np.roll(sine, -1, 0) if late else sine
        real(batch, cache, rows)

    model.run = run


def _attention_scale(model: Any, layer: Any) -> None:
    """The factor on the products of queries and keys is off by 1 %."""
    family = model._family
    if layer.q_norm is not None:
        layer.q_norm[...] *= np.float32(1.01)
        return
    layer.qkv[:, : family.heads * family.head_width] *= np.float32(1.01)
    if layer.qkv_bias is not None:
        layer.qkv_bias[: family.heads * family.head_width] *= np.float32(1.01)


def _swapped_heads(model: Any, layer: Any) -> None:
    """The first and the last query head change places."""
    width, heads = model._family.head_width, model._family.heads
    first, last = slice(0, width), slice((heads - 1) * width, heads * width)
    kept = layer.qkv[:, first].copy()
    layer.qkv[:, first] = layer.qkv[:, last]
    layer.qkv[:, last] = kept


def _kv_head(model: Any, layer: Any) -> None:
    """Every group of query heads reads the key and value head of the next group."""
    family = model._family
    width = family.kv_heads * family.head_width
    for begin in (family.heads * family.head_width, family.heads * family.head_width + width):
        part = layer.qkv[:, begin : begin + width]
        part[...] = np.roll(part, family.head_width, axis=1)


def _stale_row(model: Any, layer: Any) -> None:  # noqa: ARG001
    """After a cut back the first new row's keys and values are not kept for later rounds."""
    real, seen = model.run, {}

    def run(batch: Any, cache: Any, rows: Any) -> None:
        old = []
        for piece in batch.pieces:
            slot = cache.slot(piece.stream)
            if 0 < piece.first < seen.get(slot, 0):
                held = cache.layer(len(model._layers) - 1, slot)
                old += [(one, piece.first, one[:, piece.first].copy()) for one in held]
            seen[slot] = piece.first + piece.end - piece.begin
        real(batch, cache, rows)
        for one, at, row in old:
            one[:, at] = row

    model.run = run


def _final_norm(model: Any, layer: Any) -> None:  # noqa: ARG001
    """On the lead: the norm before the head is off by 1 %."""
    model._ends.final_norm[...] *= np.float32(1.01)


FAULTS: dict[str, Callable[[Any, Any], None]] = {
    "scale": _scale,
    "dropped_norm": _dropped_norm,
    "forgotten_one": _forgotten_one,
    "late_position": _late_position,
    "attention_scale": _attention_scale,
    "swapped_heads": _swapped_heads,
    "kv_head": _kv_head,
    "stale_row": _stale_row,
    "final_norm": _final_norm,
}
