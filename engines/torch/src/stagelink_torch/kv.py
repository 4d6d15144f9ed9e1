"""Keys and values of one layer: static memory, a slot for each stream.

It attends nothing (attention.py does), and knows no position that it is not told.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from stagelink_torch.layer import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink_torch.layer import Batch, Setup

# Positions are padded so that every slot and head begins on a 64-byte border.
_STEP = 64


class KvSlots:
    """``keys`` and ``values`` ``[slots, kv_heads, reserved + positions, head_width]``.

    Every position of a stream is kept, for layers with a window too: a cut back is then a smaller
    position and nothing else. ``reserved`` rows before position 0 are zeros for ever (attention
    sinks use one).
    """

    def __init__(self, kv_heads: int, head_width: int, setup: Setup, reserved: int = 0) -> None:
        """Allocate zeros for all slots; pages are touched when they are first used."""
        step = math.lcm(_STEP, setup.kv_step)
        padded = -(-(setup.context + reserved) // step) * step
        shape = (setup.slots, kv_heads, padded, head_width)
        self.keys = torch.zeros(shape, dtype=setup.kv_dtype, device=setup.device)
        self.values = torch.zeros(shape, dtype=setup.kv_dtype, device=setup.device)
        self.reserved = reserved
        # Padded reads see what is beyond a stream's end, times zero: it must be finite.
        self._wipe_slot = setup.invariant
        self._wipe_cut = setup.invariant or setup.device.type != "cpu"

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.keys.nbytes + self.values.nbytes

    def put(self, keys: torch.Tensor, values: torch.Tensor, batch: Batch) -> None:
        """Store the rows' keys and values ``[rows, kv_heads, head_width]`` at their positions."""
        if batch.bucket:
            at = batch.positions + self.reserved
            self.keys[batch.slots, :, at] = keys.to(self.keys.dtype)
            self.values[batch.slots, :, at] = values.to(self.values.dtype)
            return
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)
        for piece in batch.pieces:
            first, last = piece.first + self.reserved, piece.last + self.reserved
            self.keys[piece.slot, :, first:last] = keys[:, piece.begin : piece.end]
            self.values[piece.slot, :, first:last] = values[:, piece.begin : piece.end]

    def clear(self, slot: int) -> None:
        """Wipe the whole slot where every read is padded; else what ended was cut to 0."""
        if self._wipe_slot:
            self.keys[slot].zero_()
            self.values[slot].zero_()

    def can_cut(self, slot: int, held: int, position: int) -> bool:  # noqa: ARG002
        """Say yes: every position is kept."""
        return True

    def cut(self, slot: int, held: int, position: int) -> None:
        """Wipe what a padded read would see; else it is written again before it is read."""
        if self._wipe_cut:
            span = slice(self.reserved + position, self.reserved + held)
            self.keys[slot, :, span].zero_()
            self.values[slot, :, span].zero_()

    def note(self, batch: Batch) -> None:
        """Do nothing: where rows go, their positions say."""

    def parts(self, position: int) -> tuple[Part, ...]:
        """Return ``[kv_heads, position, head_width]`` twice."""
        part = Part((self.keys.shape[1], position, self.keys.shape[3]), self.keys.dtype)
        return part, part

    def save(self, slot: int, position: int) -> Sequence[torch.Tensor]:
        """Return views of the keys and the values."""
        span = slice(self.reserved, self.reserved + position)
        return self.keys[slot, :, span], self.values[slot, :, span]

    def restore(self, slot: int, position: int, parts: Sequence[torch.Tensor]) -> None:
        """Copy saved keys and values in."""
        self.clear(slot)
        span = slice(self.reserved, self.reserved + position)
        self.keys[slot, :, span] = parts[0].to(self.keys.device)
        self.values[slot, :, span] = parts[1].to(self.values.device)
