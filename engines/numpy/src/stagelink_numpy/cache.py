"""The KV of a stage: static arrays, a slot for each open stream, and each stream's position.

It decides nothing about a plan (the seam does) and computes no attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.engine import EngineError
from stagelink_numpy.invariance import KEY_BLOCK
from stagelink_numpy.memory import ALIGNMENT, FLOAT_BYTES, aligned_zeros

if TYPE_CHECKING:
    from stagelink.engine import EngineSettings, LlamaFamily
    from stagelink_numpy.memory import Floats

# Positions are padded so that every slot and head begins on a 64-byte border, whatever the context.
_STEP = ALIGNMENT // FLOAT_BYTES


class Cache:
    """KV arrays ``[layers, slots, kv_heads, positions, head_width]`` and who holds which slot.

    A stream's bits do not depend on its slot: every slot is aligned alike, and rows beyond a
    stream's position are never read.
    """

    def __init__(self, family: LlamaFamily, layers: int, settings: EngineSettings) -> None:
        """Allocate for ``settings.streams_max`` streams of ``settings.context`` positions."""
        # Attention by row reads whole blocks: what is beyond a stream's end must be there, finite.
        self._wipe = settings.batch_invariant
        step = KEY_BLOCK if self._wipe else _STEP
        padded = -(-settings.context // step) * step
        shape = (layers, settings.streams_max, family.kv_heads, padded, family.head_width)
        self.keys = aligned_zeros(*shape)
        self.values = aligned_zeros(*shape)
        self._free = list(range(settings.streams_max - 1, -1, -1))
        self._slots: dict[int, int] = {}
        self._positions: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def free(self) -> int:
        """How many streams can be opened now."""
        return len(self._free)

    def positions(self) -> dict[int, int]:
        """Return a copy: how many positions each open stream holds."""
        return dict(self._positions)

    def position(self, stream: int) -> int:
        """Return how many positions an open stream holds; ``unknown_stream`` otherwise."""
        if stream not in self._positions:
            raise EngineError(
                f"numpy engine: expected an open stream, got stream {stream}; open it first",
                reason="unknown_stream",
            )
        return self._positions[stream]

    def slot(self, stream: int) -> int:
        """Return the slot of an open stream."""
        return self._slots[stream]

    def open(self, stream: int) -> int:
        """Give ``stream`` a free slot at position 0 and return the slot; the caller checked."""
        slot = self._free.pop()
        if self._wipe:
            self.keys[:, slot] = 0.0
            self.values[:, slot] = 0.0
        self._slots[stream] = slot
        self._positions[stream] = 0
        return slot

    def move(self, stream: int, position: int) -> None:
        """Say that an open stream now holds ``position`` positions."""
        self._positions[stream] = position

    def cut(self, stream: int, position: int) -> None:
        """Go back to ``position``, which the stream holds."""
        held, slot = self._positions[stream], self._slots[stream]
        if self._wipe:
            self.keys[:, slot, :, position:held] = 0.0
            self.values[:, slot, :, position:held] = 0.0
        self._positions[stream] = position

    def close(self, stream: int) -> None:
        """Give the slot of an open stream back."""
        self._free.append(self._slots.pop(stream))
        del self._positions[stream]

    def layer(self, layer: int, slot: int) -> tuple[Floats, Floats]:
        """Return the keys and the values of one slot, ``[kv_heads, positions, head_width]``."""
        return self.keys[layer, slot], self.values[layer, slot]
