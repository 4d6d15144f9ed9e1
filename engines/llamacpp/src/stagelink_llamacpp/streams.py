"""The open streams of a stage: slots, positions, and what a cut back needs of a recurrent state.

It computes nothing itself; a replay is a call of the context.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import EngineError
from stagelink_llamacpp.calls import CALL_ROWS
from stagelink_llamacpp.rounds import Held

if TYPE_CHECKING:
    from stagelink_llamacpp.context import Context, Floats

# Values of which a sum of squares is made by one thread.
_FEW = 8192
# llama.cpp's flag for the part of a state that cannot be cut: recurrent and convolution states.
_PARTIAL = 1


@dataclasses.dataclass(slots=True)
class _Before:
    """A stream before its last round: its state there, and the rows that the round brought.

    Attributes:
        position: There.
        state: The recurrent part.
        rows: Of the round.
        ends: Where the pieces end in which the rows were computed.
    """

    position: int
    state: bytes
    rows: Floats
    ends: tuple[int, ...] = ()


@dataclasses.dataclass(slots=True)
class _Stream:
    slot: int
    position: int = 0
    before: _Before | None = None
    # Whether a row of it came out as no number: then its cells may hold what is none.
    spoilt: bool = False


class Streams:
    """Streams by id over one context.

    A KV is cut by forgetting positions. A recurrent state holds only its last position, so it is
    taken as it was before the stream's last round, and that round's rows are run again as far as
    they are kept.
    """

    def __init__(self, context: Context, slots: int, rows_max: int, *, recurrent: bool) -> None:
        """Start with every slot free; a call of the context has at most ``rows_max`` rows."""
        self._rows_max = rows_max
        self._context = context
        self._recurrent = recurrent
        self._streams: dict[int, _Stream] = {}
        self._slots = range(slots)
        self._clean = self._clean_state() if recurrent else b""

    def held(self) -> dict[int, Held]:
        """Return what every open stream holds."""
        return {stream: self._held(one) for stream, one in self._streams.items()}

    def free(self) -> list[int]:
        """Return the slots that no stream holds, in order."""
        taken = {one.slot for one in self._streams.values()}
        return [slot for slot in self._slots if slot not in taken]

    def end_of(self, stream: int) -> tuple[int, int] | None:
        """Return slot and position of an open stream, or ``None``."""
        own = self._streams.get(stream)
        return None if own is None else (own.slot, own.position)

    def one(self, stream: int) -> Held:
        """Return what one stream holds; ``unknown_stream`` where it is not open."""
        if stream not in self._streams:
            raise EngineError(
                f"llamacpp engine: expected an open stream, got stream {stream}; open it first",
                reason="unknown_stream",
            )
        return self._held(self._streams[stream])

    def open(self, stream: int, slot: int) -> None:
        """Give a free slot to a stream at position 0."""
        self._streams[stream] = _Stream(slot)

    def close(self, stream: int) -> None:
        """Forget a stream and free its slot."""
        own = self._streams.pop(stream)
        self._context.forget(own.slot)
        if own.spoilt:
            self._overwrite(own.slot, 0, own.position)
            self._context.forget(own.slot)

    def cut(self, stream: int, position: int) -> None:
        """Cut a stream back to a position that `rounds.check_cut` allowed."""
        own = self._streams[stream]
        if position == own.position:
            return
        held, own.position = own.position, position
        if position == 0 or not self._recurrent:
            self._go_back(own, position, held)
            own.before = None if position == 0 else own.before
            return
        before = own.before
        if before is None:
            raise self._lost(stream, position)
        self._go_back(own, before.position, held, before.state)
        self._run_again(own.slot, before, position - before.position)

    def look(self, slot: int, rows: Floats) -> None:
        """Note whether rows that a slot's stream got are numbers."""
        for at in range(0, len(rows), CALL_ROWS):
            if not _are_numbers(rows[at : at + CALL_ROWS]):
                for own in self._streams.values():
                    own.spoilt |= own.slot == slot
                return

    def remember(self, stream: int, rows: Floats, ends: tuple[int, ...]) -> None:
        """Take a recurrent stream's state before a round that brings ``rows``.

        ``ends`` are those of the pieces in which the rows are computed, from the first on.
        """
        own = self._streams[stream]
        state = self._context.save(own.slot, _PARTIAL) if own.position else b""
        own.before = _Before(own.position, state, rows.copy(), ends)

    def move(self, stream: int, position: int) -> None:
        """Say that an open stream now holds ``position`` positions."""
        self._streams[stream].position = position

    def place(self, stream: int, slot: int, position: int) -> None:
        """Open a stream whose slot was given a saved state; it cannot be cut before it."""
        before = _Before(position, b"", np.empty((0, self._context.width), np.float32))
        self._streams[stream] = _Stream(slot, position, before)

    def _held(self, own: _Stream) -> Held:
        floor = 0
        if self._recurrent:
            floor = own.position if own.before is None else own.before.position
        return Held(own.slot, own.position, floor)

    def _run_again(self, slot: int, before: _Before, kept: int) -> None:
        """Run the kept rows of a round in the pieces in which they were computed."""
        scratch = np.empty_like(before.rows[:kept])
        for begin, end in itertools.pairwise((0, *before.ends)):
            rows = before.rows[begin : min(end, kept)]
            if len(rows):
                at = [(slot, before.position + begin, len(rows))]
                self._context.rows(rows, at, scratch[: len(rows)])

    def _clean_state(self) -> bytes:
        """Return a recurrent state that is made of numbers."""
        zeros = np.zeros((1, self._context.width), np.float32)
        self._context.rows(zeros, [(0, 0, 1)], zeros)
        state = self._context.save(0, _PARTIAL)
        self._context.forget(0)
        return state

    def _go_back(self, own: _Stream, position: int, held: int, state: bytes = b"") -> None:
        """Forget what lies behind ``position``, and see to it that its cells hold numbers."""
        self._forget(own.slot, position, state)
        if own.spoilt:
            self._overwrite(own.slot, position, held)
            self._forget(own.slot, position, state)

    def _overwrite(self, slot: int, first: int, end: int) -> None:
        """Run rows of zeros over the cells of positions that were forgotten.

        llama.cpp reads the cells behind a sequence's end too, and multiplies them by zero: what was
        no number there would reach every later row of the slot.
        """
        for at in range(first, end, self._rows_max):
            zeros = np.zeros((min(self._rows_max, end - at), self._context.width), np.float32)
            self._context.rows(zeros, [(slot, at, len(zeros))], zeros)
        if self._clean:
            # llama.cpp begins a recurrent state by multiplying the old one by zero.
            self._context.restore(slot, self._clean, _PARTIAL)

    def _forget(self, slot: int, position: int, state: bytes = b"") -> None:
        if state:
            self._context.restore(slot, state, _PARTIAL)
        if not self._context.forget(slot, position):
            raise EngineError(
                f"llamacpp engine: expected to cut slot {slot} back to position {position}, got a "
                "refusal of llama.cpp; start the stage again",
                reason="native",
            )

    def _lost(self, stream: int, position: int) -> EngineError:
        return EngineError(
            f"llamacpp engine: expected a state of stream {stream} before position {position}, got "
            "none; run the prompt again",
            reason="history_gone",
        )


def _are_numbers(rows: Floats) -> bool:
    """Whether every value is finite."""
    # A sum of squares is finite of finite values only; one that is not may just be too large.
    if rows.size <= _FEW and math.isfinite(np.vdot(rows, rows)):
        return True
    return bool(np.isfinite(rows).all())
