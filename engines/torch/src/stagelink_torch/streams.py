"""Which stream holds which slot, and how many positions.

It holds no tensor: the layers' slots do.
"""

from __future__ import annotations

from stagelink_torch.refusal import refuse


class Streams:
    """The open streams of a stage."""

    def __init__(self, slots: int) -> None:
        """Begin with every slot free."""
        self._free = list(range(slots - 1, -1, -1))
        self._slots: dict[int, int] = {}
        self._positions: dict[int, int] = {}

    @property
    def free(self) -> int:
        """How many streams can be opened now."""
        return len(self._free)

    @property
    def positions(self) -> dict[int, int]:
        """A copy: how many positions each open stream holds."""
        return dict(self._positions)

    def position(self, stream: int) -> int:
        """Return how many positions an open stream holds; ``unknown_stream`` otherwise."""
        if stream not in self._positions:
            raise refuse("unknown_stream", "an open stream", f"stream {stream}")
        return self._positions[stream]

    def slot(self, stream: int) -> int:
        """Return the slot of an open stream."""
        return self._slots[stream]

    def open(self, stream: int) -> int:
        """Give ``stream`` a free slot at position 0 and return the slot; the caller checked."""
        slot = self._free.pop()
        self._slots[stream] = slot
        self._positions[stream] = 0
        return slot

    def move(self, stream: int, position: int) -> None:
        """Say that an open stream now holds ``position`` positions."""
        self._positions[stream] = position

    def close(self, stream: int) -> None:
        """Give the slot of an open stream back."""
        self._free.append(self._slots.pop(stream))
        del self._positions[stream]
