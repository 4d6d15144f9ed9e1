"""What a linear-attention layer keeps of each stream, and how it goes back to an earlier position.

It computes nothing itself: ``Rule`` is the layer's own step, and a cut runs it again.

A recurrent state cannot be cut, and keeping one after each row costs a state a row. What the rows
put into the recurrence is far smaller (a few thousand values against the ``heads x Dk x Dv`` of a
state), so that is what is kept, in up to two *spans* a slot: the state before the span's first row,
and the inputs of its rows. A cut restores the state before the span and runs the kept rows again,
in the same pieces and so by the same form: what comes out is what a stream that stopped there has,
byte for byte. A span takes pieces up to ``SPAN_ROWS`` rows (a longer piece has a span for itself),
so a cut reaches back more than ``SPAN_ROWS`` rows, or to the beginning of the last piece but one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import torch

from stagelink_torch.layer import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink_torch.layer import Setup

__all__ = ["SPAN_ROWS", "DeltaShape", "DeltaSlots", "Inputs", "Rule"]

SPAN_ROWS = 16
_SPANS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class DeltaShape:
    """Sizes of one layer's state: ``Dk x Dv`` a head; ``taps - 1`` rows of the convolution."""

    heads: int
    key_width: int
    value_width: int
    channels: int
    taps: int


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """What the rows of one piece put into convolution and recurrence.

    Attributes:
        mixed: ``[n, channels]`` in the compute dtype, before the convolution.
        decay: float32 ``[n, heads]``.
        rate: ``[n, heads]``.
    """

    mixed: torch.Tensor
    decay: torch.Tensor
    rate: torch.Tensor

    @property
    def rows(self) -> int:
        """Rows of the piece."""
        return self.mixed.shape[0]

    def head(self, rows: int) -> Inputs:
        """Return the first ``rows`` rows."""
        return Inputs(self.mixed[:rows], self.decay[:rows], self.rate[:rows])


class Rule(Protocol):
    """The layer's own step."""

    def step(self, inputs: Inputs, past: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Move ``past`` and ``state`` past the rows, in place; return ``[n, heads, Dv]``."""
        ...


class _Span:
    """The state before position ``first`` (in buffer ``kept``) and the pieces since."""

    __slots__ = ("first", "kept", "pieces")

    def __init__(self, first: int, kept: int) -> None:
        self.first = first
        self.kept = kept
        self.pieces: list[Inputs] = []

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


class DeltaSlots:
    """Recurrent states ``[slots, 1 + 2, heads, Dk, Dv]`` and convolution pasts, and their spans."""

    def __init__(self, shape: DeltaShape, rule: Rule, setup: Setup) -> None:
        """Allocate the states; memory of a kept state is touched when a stream first needs it."""
        buffers = 1 + _SPANS
        state = (setup.slots, buffers, shape.heads, shape.key_width, shape.value_width)
        past = (setup.slots, buffers, shape.taps - 1, shape.channels)
        self._states = torch.zeros(state, dtype=torch.float32, device=setup.device)
        self._pasts = torch.zeros(past, dtype=setup.dtype, device=setup.device)
        self._spans: list[list[_Span]] = [[] for _ in range(setup.slots)]
        self._rule = rule
        self._parts = (
            Part(past[2:], setup.dtype),
            Part(state[2:], torch.float32),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all slots, kept states included."""
        return self._states.nbytes + self._pasts.nbytes

    def clear(self, slot: int) -> None:
        """Put the slot back to position 0."""
        self._spans[slot] = []
        self._states[slot, 0].zero_()
        self._pasts[slot, 0].zero_()

    def advance(self, slot: int, first: int, inputs: Inputs) -> torch.Tensor:
        """Run the piece that begins at position ``first``; return ``[n, heads, Dv]``."""
        spans = self._spans[slot]
        if not spans or (spans[-1].pieces and spans[-1].rows + inputs.rows > SPAN_ROWS):
            if len(spans) == _SPANS:
                del spans[0]
            kept = 1 if not spans else _SPANS + 1 - spans[0].kept
            self._copy(slot, 0, kept)
            spans.append(_Span(first, kept))
        spans[-1].pieces.append(inputs)
        return self._rule.step(inputs, self._pasts[slot, 0], self._states[slot, 0])

    def can_cut(self, slot: int, held: int, position: int) -> bool:
        """Whether the inputs since ``position`` are still here; 0 and ``held`` always can."""
        spans = self._spans[slot]
        return position in (0, held) or bool(spans and spans[0].first <= position)

    def cut(self, slot: int, held: int, position: int) -> None:
        """Restore the state before the span of ``position`` and run its kept rows again."""
        if position == held:
            return
        spans = self._spans[slot]
        while spans and spans[-1].first > position:
            spans.pop()
        if not spans or position == 0:
            if position != 0:
                raise AssertionError("can_cut was not asked")
            self.clear(slot)
            return
        span = spans[-1]
        self._copy(slot, span.kept, 0)
        left = position - span.first
        pieces, span.pieces = span.pieces, []
        for piece in pieces:
            if left == 0:
                break
            inputs = piece.head(min(left, piece.rows))
            self._rule.step(inputs, self._pasts[slot, 0], self._states[slot, 0])
            span.pieces.append(inputs)
            left -= inputs.rows

    def parts(self, position: int) -> tuple[Part, ...]:
        """Name the convolution's past and the recurrent state; the position does not matter."""
        del position
        return self._parts

    def save(self, slot: int, position: int) -> Sequence[torch.Tensor]:
        """Return views of the convolution's past and of the recurrent state."""
        del position
        return self._pasts[slot, 0], self._states[slot, 0]

    def restore(self, slot: int, position: int, parts: Sequence[torch.Tensor]) -> None:
        """Take a saved state; it cannot be cut back except to 0 until rows were added."""
        del position
        self._spans[slot] = []
        self._pasts[slot, 0].copy_(parts[0])
        self._states[slot, 0].copy_(parts[1])

    def _copy(self, slot: int, source: int, target: int) -> None:
        """Copy one buffer of a slot to another."""
        self._states[slot, target].copy_(self._states[slot, source])
        self._pasts[slot, target].copy_(self._pasts[slot, source])
