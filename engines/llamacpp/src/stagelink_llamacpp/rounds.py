"""A checked round as calls of llama.cpp: which slots, and what is computed together.

It changes no state: what a round would do is a value, and the engine applies it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, Entry
from stagelink_llamacpp.refusal import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from stagelink.engine import Batch, EngineSettings, PlanLike


# Rows of a stream with a recurrent state that may be a draft's, of which any part may be kept: they
# are computed one by one, so that what is kept is what a round of so many rows would have left.
WINDOW_ROWS = 16
# llama.cpp multiplies so many rows at once, and the last ones of a call otherwise, a single row of
# floats in yet another order: a call that is divided at a multiple of it, and has no fewer in its
# last part, keeps its bits.
_ROWS_AT_ONCE = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What an open stream holds.

    Attributes:
        slot: Its place, a sequence id of llama.cpp.
        position: Positions that it holds.
        cut_floor: Earliest position, besides 0, to which it can be cut back.
    """

    slot: int
    position: int
    cut_floor: int


@dataclasses.dataclass(frozen=True, slots=True)
class SlotPiece:
    """Rows ``begin..end`` of a round that one slot has in one batch, from ``first`` on."""

    slot: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class SlotRound:
    """What a plan asks, after every check.

    Attributes:
        entries: In plan order, each with the slot that the stream has, or will get.
        calls: What is computed together, one after the other: pieces of equally many rows whose
            slots follow each other.
        rows: Rows of the round.
    """

    entries: tuple[tuple[Entry, int], ...]
    calls: tuple[tuple[SlotPiece, ...], ...]
    rows: int

    def ends_of(self, entry: Entry) -> tuple[int, ...]:
        """Return where the pieces of an entry end, in order, counted from its first row."""
        pieces = (piece for call in self.calls for piece in call)
        ends = (one.end - entry.begin for one in pieces if entry.begin < one.end <= entry.end)
        return tuple(sorted(ends))


def check_round(
    plan: PlanLike,
    held: Mapping[int, Held],
    free: Iterable[int],
    settings: EngineSettings,
    *,
    call_rows: int,
    lean_rows: int | None = None,
    recurrent: bool = False,
) -> SlotRound:
    """Return the checked round.

    Args:
        plan: The columns.
        held: The open streams.
        free: Slots that no stream holds; the lowest is given out first.
        settings: The limits.
        call_rows: Most rows of several streams in a call.
        lean_rows: Most rows of a call where it can be divided further with the same bits; as
            ``call_rows`` where not told.
        recurrent: Whether a stream has a state that only its last position has.

    Raises:
        EngineError: With the reason code of docs/protocol.md 9 for the rule that is broken.
    """
    positions = {stream: one.position for stream, one in held.items()}
    places = sorted(free)

    def reach(stream: int, position: int) -> None:
        check_reach(held[stream], position, stream)

    checked = CHECKS.plan(plan, positions, len(places), settings, reach)
    slots = _slots(checked.entries, held, places)
    by_stream = {entry.stream: slot for entry, slot in slots}
    drafts = {one.stream for one in checked.entries if recurrent and one.rows > 1}
    most = call_rows, lean_rows or call_rows
    calls = [call for batch in checked.batches for call in _calls(batch, by_stream, drafts, most)]
    return SlotRound(slots, tuple(calls), checked.rows)


def one_more_row(
    plan: PlanLike,
    end_of: Callable[[int], tuple[int, int] | None],
    settings: EngineSettings,
) -> SlotRound | None:
    """Return what `check_round` does for a plan of one row of one stream, or ``None`` for another.

    Most plans are such, and rank 0 checks one while all stages wait for it.

    Args:
        plan: The columns.
        end_of: Returns slot and position of a stream; ``None`` where it is not open.
        settings: The limits.
    """
    if len(plan.ids) != 1 or len(plan.cuts) or plan.rows_total != 1:
        return None
    (stream,) = plan.ids
    end = end_of(stream)
    if end is None:
        return None
    slot, first = end
    columns = tuple(plan.ops), tuple(plan.firsts), tuple(plan.rows)
    if columns != ((CONTINUE,), (first,), (1,)) or stream < 0 or first >= settings.context:
        return None
    entry = Entry(stream, CONTINUE, first, 0, 1)
    return SlotRound(((entry, slot),), ((SlotPiece(slot, first, 0, 1),),), 1)


def check_cut(held: Held, position: int, stream: int) -> None:
    """Refuse a position that the stream does not hold, or can no longer be cut back to.

    Raises:
        EngineError: ``wrong_position`` or, for a recurrent state, ``history_gone``.
    """
    CHECKS.position(stream, position, held.position)
    check_reach(held, position, stream)


def check_reach(held: Held, position: int, stream: int) -> None:
    """Refuse a held position that a recurrent state can no longer be cut back to."""
    if 0 < position < held.cut_floor:
        raise CHECKS.gone(stream, position, f"{held.cut_floor} to {held.position}")


def _slots(
    entries: Sequence[Entry], held: Mapping[int, Held], free: list[int]
) -> tuple[tuple[Entry, int], ...]:
    """Give every entry its slot, each from what the ones before it leave free."""
    placed = []
    for entry in entries:
        slot = free.pop(0) if entry.op == OPEN else held[entry.stream].slot
        if entry.op in (CLOSE, CANCEL):
            free.append(slot)
            free.sort()
        placed.append((entry, slot))
    return tuple(placed)


def _calls(
    batch: Batch, slots: Mapping[int, int], drafts: AbstractSet[int], most: tuple[int, int]
) -> Iterator[tuple[SlotPiece, ...]]:
    """Yield what is computed together of a batch.

    ``most`` are the rows by which streams that are computed alone are told, and those of a call.
    Rows of the streams ``drafts`` are computed one by one, where they are few: also beside others,
    as a cut back runs them again without these.
    """
    pieces: list[SlotPiece] = []
    for one in sorted(batch.pieces, key=lambda one: slots[one.stream]):
        slot, begin, end = slots[one.stream], batch.begin + one.begin, batch.begin + one.end
        if one.stream not in drafts or end - begin > WINDOW_ROWS:
            pieces.append(SlotPiece(slot, one.first, begin, end))
            continue
        for at in range(end - begin):
            yield (SlotPiece(slot, one.first + at, begin + at, begin + at + 1),)
    for call in _together(pieces):
        for part in _divided(call, most[0]):
            yield from _lean(part, most[1])


def _together(pieces: Sequence[SlotPiece]) -> Iterator[tuple[SlotPiece, ...]]:
    """Yield the calls of pieces in order of their slots.

    llama.cpp computes sequences together where each has equally many rows and their ids follow each
    other; so every call here is one of its micro-batches, and its rows keep their order.
    """
    call: list[SlotPiece] = []
    for piece in pieces:
        follows = call and (
            piece.slot == call[-1].slot + 1
            and piece.end - piece.begin == call[-1].end - call[-1].begin
        )
        if call and not follows:
            yield tuple(call)
            call = []
        call.append(piece)
    if call:
        yield tuple(call)


def _divided(call: tuple[SlotPiece, ...], rows_max: int) -> Iterator[tuple[SlotPiece, ...]]:
    """Yield the parts of a call that has more rows than one may: each is a call.

    All but the last have a multiple of the rows that are multiplied at once, and the last has no
    fewer. Where not even the fewest pieces with such a multiple fit, each piece is a call of its
    own.
    """
    each = call[0].end - call[0].begin
    least = _pieces_at_once(each)
    fit = rows_max // each // least * least
    if len(call) * each <= rows_max:
        fit = len(call)
    ends = list(range(fit or 1, len(call), fit or 1))
    # Only pieces of fewer rows leave so few, and of these a call that is divided has many.
    if ends and (len(call) - ends[-1]) * each < _ROWS_AT_ONCE and fit > least:
        ends[-1] -= least
    yield from (call[begin:end] for begin, end in itertools.pairwise((0, *ends, len(call))))


def _lean(call: tuple[SlotPiece, ...], rows_max: int) -> Iterator[tuple[SlotPiece, ...]]:
    """Yield the parts of a call that has more rows than it should, where they keep its bits."""
    each = call[0].end - call[0].begin
    fits = len(call) > 1 and _pieces_at_once(each) * each <= rows_max
    yield from _divided(call, rows_max) if fits else (call,)


def _pieces_at_once(each: int) -> int:
    """Return the fewest pieces of so many rows that have a multiple of those multiplied at once."""
    return _ROWS_AT_ONCE // math.gcd(each, _ROWS_AT_ONCE)
