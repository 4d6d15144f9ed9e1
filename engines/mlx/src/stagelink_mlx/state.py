"""The bytes of one stream's state of the own layers: made by save, checked and taken by restore.

It keeps nothing; the format is private to this engine and says all that a reader must compare.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from stagelink.engine import StateEnvelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.engine import Checkpoint, Family
    from stagelink_mlx.cache import LayerCache

__all__ = ["StateFormat", "bits_of", "from_bits"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """One array of a state; ``grows`` where its third dimension is the number of positions."""

    shape: tuple[int, ...]
    dtype: mx.Dtype
    grows: bool

    def at(self, position: int) -> tuple[int, ...]:
        """Return the shape for so many positions; nothing is held at position 0."""
        if not self.grows:
            return self.shape
        return (*self.shape[:2], position, *self.shape[3:])

    def nbytes(self, position: int) -> int:
        return math.prod(self.at(position)) * self.dtype.size


class StateFormat:
    """What a saved state must agree with to be taken by this stage."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        family: Family,
        bounds: tuple[int, int, int],
        probe: Sequence[LayerCache],
    ) -> None:
        """Describe the state of layers ``first..end`` for at most ``context`` positions.

        Args:
            checkpoint: Its digest is in the identity: a state of other weights is an error.
            family: So are the numbers of the model.
            bounds: ``first``, ``end`` and ``context``.
            probe: The caches of a stream of one row, which need not be evaluated.
        """
        first, end, context = bounds
        self._parts = [
            [
                _Part(one.shape, one.dtype, grows)
                for one, grows in zip(cache.saved(), cache.grows(), strict=True)
            ]
            for cache in probe
        ]
        facts = json.dumps(dict(family.config), sort_keys=True, default=str).encode()
        shapes = repr(self._parts).encode()
        content = checkpoint.content_digest()
        self._envelope = StateEnvelope.of("mlx", (first, end), context, content, facts, shapes)

    def encode(self, caches: Sequence[LayerCache], position: int) -> bytes:
        """Return the bytes of a stream's state."""
        arrays = [one for cache in caches for one in cache.saved()] if position else []
        bits = [bits_of(one) for one in arrays]
        mx.eval(bits)
        body = b"".join(np.array(one, copy=False).tobytes() for one in bits)
        return self._envelope.close(position, body)

    def parse(self, state: bytes) -> tuple[int, list[tuple[mx.array, ...]]]:
        """Return the positions and the arrays of each layer.

        Raises:
            EngineError: ``state_format`` for what is no state of this stage, ``state_damaged`` for
                one whose bytes changed, ``context_overrun`` for one with too many positions.
        """
        position, body = self._envelope.open(state)
        parts = self._parts if position else [[] for _ in self._parts]
        size = sum(one.nbytes(position) for layer in parts for one in layer)
        self._envelope.check_size(body, size)
        return position, self._arrays(parts, position, body)

    def _arrays(
        self, parts: Sequence[Sequence[_Part]], position: int, body: memoryview
    ) -> list[tuple[mx.array, ...]]:
        offset, found = 0, []
        for layer in parts:
            arrays = []
            for one in layer:
                count = math.prod(one.at(position))
                bits = np.frombuffer(body, f"<u{one.dtype.size}", count, offset)
                arrays.append(from_bits(bits, one.dtype).reshape(one.at(position)))
                offset += bits.nbytes
            found.append(tuple(arrays))
        return found


def bits_of(array: mx.array) -> mx.array:
    """Return an array's bits as unsigned numbers, unevaluated; numpy has no bfloat16."""
    unsigned = {2: mx.uint16, 4: mx.uint32}[array.dtype.size]
    return mx.contiguous(array).view(unsigned)


def from_bits(bits: np.ndarray, dtype: mx.Dtype) -> mx.array:
    """Copy bits into an MLX array of its own."""
    unsigned = {2: np.uint16, 4: np.uint32}[dtype.size]
    return mx.array(bits.view(unsigned)).view(dtype)
