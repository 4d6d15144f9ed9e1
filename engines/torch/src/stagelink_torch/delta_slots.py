"""What a linear-attention layer keeps of each stream, and how it goes back to an earlier position.

It computes nothing itself: ``Rule`` is the layer's own step, and a cut runs it again.

A recurrent state cannot be cut, and keeping one after each row costs a state a row. What the rows
put into the recurrence is far smaller (a few thousand values against the ``heads x Dk x Dv`` of a
state), so that is what is kept, in up to two *spans* a slot: the state before the span's first row,
and the inputs of its rows. A cut restores the state before the span and runs the kept rows again,
in the same pieces and so by the same form: what comes out is what a stream that stopped there has,
byte for byte. A span takes pieces up to ``SPAN_ROWS`` rows (a longer piece has a span for itself),
so a cut reaches back more than ``SPAN_ROWS`` rows, or to the beginning of the last piece but one.

Rounds that a device replays cannot append to a list: their rows' inputs are written to a ring, by
position, with as many places as two spans of such rows can have. It is made when such a round comes
first (``note``, which is also where the host writes down what it knows of the round's rows). A cut
runs such a row again beside as many copies of itself as there were streams: in the same shapes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import torch

from stagelink_torch.layer import Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink_torch.layer import Batch, Setup

__all__ = ["SPAN_ROWS", "DeltaShape", "DeltaSlots", "Inputs", "Rule"]

SPAN_ROWS = 16
_SPANS = 2
_RING_ROWS = _SPANS * SPAN_ROWS


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

    def repeated(self, slot: int, at: int, count: int) -> Inputs:
        """Return ``count`` copies of one row of a ring ``[slots, places, ...]``."""
        mixed, decay, rate = (
            one[slot, at].expand(count, -1).contiguous()
            for one in (self.mixed, self.decay, self.rate)
        )
        return Inputs(mixed, decay, rate)

    def copied(self, begin: int, end: int) -> Inputs:
        """Return copies of rows ``begin..end``."""
        part = slice(begin, end)
        return Inputs(self.mixed[part].clone(), self.decay[part].clone(), self.rate[part].clone())

    def head(self, rows: int) -> Inputs:
        """Return the first ``rows`` rows."""
        return Inputs(self.mixed[:rows], self.decay[:rows], self.rate[:rows])


class Rule(Protocol):
    """The layer's own step."""

    def step(self, inputs: Inputs, past: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Move ``past`` and ``state`` past the rows, in place; return ``[n, heads, Dv]``."""
        ...

    def step_each(self, inputs: Inputs, pasts: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Move each of ``n`` streams past its row, in place; return ``[n, heads, Dv]``.

        ``pasts`` and ``states`` have a stream's as ``step`` wants it, ``n`` of them.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Recorded:
    """One row whose inputs lie in the ring, computed as one of ``streams`` rows."""

    streams: int
    rows: int = 1


class _Span:
    """The state before position ``first`` (in buffer ``kept``) and the pieces since."""

    __slots__ = ("first", "kept", "pieces")

    def __init__(self, first: int, kept: int) -> None:
        self.first = first
        self.kept = kept
        self.pieces: list[Inputs | _Recorded] = []

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
        self._ring: Inputs | None = None
        self._shape, self._setup = shape, setup
        self._rule = rule
        self._parts = (
            Part(past[2:], setup.dtype),
            Part(state[2:], torch.float32),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all slots, kept states included, kept inputs not."""
        return self._states.nbytes + self._pasts.nbytes

    def clear(self, slot: int) -> None:
        """Put the slot back to position 0."""
        self._spans[slot] = []
        self._states[slot, 0].zero_()
        self._pasts[slot, 0].zero_()

    def advance(self, slot: int, first: int, inputs: Inputs) -> torch.Tensor:
        """Run the piece that begins at position ``first``; return ``[n, heads, Dv]``."""
        self._span(slot, first, inputs.rows).pieces.append(inputs)
        return self._rule.step(inputs, self._pasts[slot, 0], self._states[slot, 0])

    def note(self, batch: Batch) -> None:
        """Write the batch's rows down, and keep the state where a span begins with one."""
        if self._ring is None:
            self._ring = self._make_ring()
        kept = _Recorded(len(batch.pieces))
        for piece in batch.pieces:
            self._span(piece.slot, piece.first, 1).pieces.append(kept)

    def advance_each(self, batch: Batch, inputs: Inputs) -> torch.Tensor:
        """Run one row of each stream of a noted batch; return ``[n, heads, Dv]``."""
        if self._ring is None:
            raise AssertionError("the batch was not noted")
        at, ring = batch.positions % _RING_ROWS, self._ring
        ring.mixed[batch.slots, at] = inputs.mixed
        ring.decay[batch.slots, at] = inputs.decay
        ring.rate[batch.slots, at] = inputs.rate
        pasts = self._pasts[:, 0].index_select(0, batch.slots)
        states = self._states[:, 0].index_select(0, batch.slots)
        out = self._rule.step_each(inputs, pasts, states)
        self._pasts[batch.slots, 0] = pasts
        self._states[batch.slots, 0] = states
        return out

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
        at = span.first
        pieces, span.pieces = span.pieces, []
        for piece in pieces:
            if at == position:
                break
            span.pieces.append(self._again(slot, at, piece, position - at))
            at += span.pieces[-1].rows

    def _again(
        self, slot: int, first: int, piece: Inputs | _Recorded, most: int
    ) -> Inputs | _Recorded:
        """Run the first rows of a piece again, at most ``most``, and return what they are."""
        past, state = self._pasts[slot, 0], self._states[slot, 0]
        if isinstance(piece, Inputs):
            inputs = piece.head(min(most, piece.rows))
            self._rule.step(inputs, past, state)
            return inputs
        if self._ring is None:
            raise AssertionError("a recorded row without a ring")
        inputs = self._ring.repeated(slot, first % _RING_ROWS, piece.streams)
        pasts, states = (one.expand(piece.streams, *one.shape).clone() for one in (past, state))
        self._rule.step_each(inputs, pasts, states)
        past.copy_(pasts[0])
        state.copy_(states[0])
        return piece

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

    def _span(self, slot: int, first: int, rows: int) -> _Span:
        """Return the span of a slot that takes a piece of ``rows`` rows at position ``first``."""
        spans = self._spans[slot]
        if not spans or (spans[-1].pieces and spans[-1].rows + rows > SPAN_ROWS):
            if len(spans) == _SPANS:
                del spans[0]
            kept = 1 if not spans else _SPANS + 1 - spans[0].kept
            self._copy(slot, 0, kept)
            spans.append(_Span(first, kept))
        return spans[-1]

    def _make_ring(self) -> Inputs:
        """Allocate the inputs of two spans for every slot."""
        shape, setup = self._shape, self._setup
        form = (setup.slots, _RING_ROWS)
        return Inputs(
            torch.zeros(*form, shape.channels, dtype=setup.dtype, device=setup.device),
            torch.zeros(*form, shape.heads, dtype=torch.float32, device=setup.device),
            torch.zeros(*form, shape.heads, dtype=setup.dtype, device=setup.device),
        )

    def _copy(self, slot: int, source: int, target: int) -> None:
        """Copy one buffer of a slot to another."""
        self._states[slot, target].copy_(self._states[slot, source])
        self._pasts[slot, target].copy_(self._pasts[slot, source])
