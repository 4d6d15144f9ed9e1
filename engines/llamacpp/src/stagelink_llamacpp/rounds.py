"""A plan, checked against the open streams and turned into calls of llama.cpp.

It changes no state: what a round would do is a value, and the engine applies it.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stagelink.engine import EngineSettings, PlanLike


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
class Entry:
    """One stream of a round; its rows are ``begin..end`` of the round's."""

    stream: int
    op: int
    slot: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``begin..end`` of a round that one stream has in one batch, from ``first`` on."""

    slot: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """What a plan asks, after every check.

    Attributes:
        entries: In plan order; slots are those that the streams have, or will get.
        calls: What is computed together, one after the other: pieces of equally many rows whose
            slots follow each other.
        rows: Rows of the round.
    """

    entries: tuple[Entry, ...]
    calls: tuple[tuple[Piece, ...], ...]
    rows: int


def check_round(
    plan: PlanLike, held: Mapping[int, Held], free: Iterable[int], settings: EngineSettings
) -> Round:
    """Return the checked round.

    Args:
        plan: The columns.
        held: The open streams.
        free: Slots that no stream holds; the lowest is given out first.
        settings: The limits.

    Raises:
        EngineError: With the reason code of docs/protocol.md 9 for the rule that is broken.
    """
    entries = _check_entries(plan, held, sorted(free), settings)
    rows = entries[-1].end if entries else 0
    if plan.rows_total != rows:
        raise _refuse("rows_count", f"{rows} rows, the sum of the entries", plan.rows_total)
    for begin, cut in itertools.pairwise([0, *plan.cuts]):
        if not 0 < cut < rows:
            raise _refuse("cut_outside", f"a cut above 0 and below {rows}", cut)
        if cut <= begin:
            raise _refuse("cut_order", f"a cut above {begin}", cut)
    batches = itertools.pairwise([0, *plan.cuts, rows] if rows else [])
    calls = [call for begin, end in batches for call in _calls(entries, begin, end)]
    return Round(entries, tuple(calls), rows)


def _check_entries(
    plan: PlanLike, held: Mapping[int, Held], free: list[int], settings: EngineSettings
) -> tuple[Entry, ...]:
    """Check the entries in order, each against the slots that the ones before it leave."""
    columns = (plan.ids, plan.ops, plan.firsts, plan.rows)
    if len({len(column) for column in columns}) > 1:
        raise _refuse("rows_count", "columns of one length", [len(column) for column in columns])
    if len(plan.ids) > settings.streams_max:
        raise _refuse("too_many_streams", f"at most {settings.streams_max}", len(plan.ids))
    entries: list[Entry] = []
    begin, last = 0, -1
    for stream, op, first, rows in zip(*columns, strict=True):
        if stream <= last:
            raise _refuse("streams_order", f"an id above {last}", stream)
        last = stream
        own = held.get(stream)
        _check_entry(stream, (op, first, rows), own, settings)
        if op == OPEN:
            if not free:
                wanted = f"at most {settings.streams_max} open streams"
                raise _refuse("streams_full", wanted, stream)
            slot = free.pop(0)
        elif own is not None:
            slot = own.slot
        if op in (CLOSE, CANCEL):
            free.append(slot)
            free.sort()
        entries.append(Entry(stream, op, slot, first, begin, begin + rows))
        begin += rows
    if begin > settings.rows_max:
        raise _refuse("too_many_rows", f"at most {settings.rows_max} rows a round", begin)
    return tuple(entries)


def _check_entry(
    stream: int, asked: tuple[int, int, int], held: Held | None, settings: EngineSettings
) -> None:
    """Check one entry, ``(op, first, rows)``, by its op's rule."""
    op, first, rows = asked
    if op not in (OPEN, CONTINUE, CLOSE, CANCEL):
        raise _refuse("unsupported_op", "open, continue, close or cancel", f"op {op}", stream)
    if op == OPEN and held is not None:
        raise _refuse("stream_reused", "a stream that is not open", "an open one", stream)
    if op != OPEN and held is None:
        raise _refuse("unknown_stream", "an open stream", "one that is not open", stream)
    if op in (CLOSE, CANCEL):
        if rows != 0:
            raise _refuse("rows_with_close", "0 rows with a close", rows, stream)
        return
    if rows < 1:
        raise _refuse("rows_missing", "at least 1 row", rows, stream)
    if held is None:
        if first != 0:
            raise _refuse("open_first", "an open at position 0", first, stream)
    else:
        check_cut(held, first, stream)
    if first + rows > settings.context:
        raise _refuse("context_overrun", f"{settings.context} positions", first + rows, stream)


def check_cut(held: Held, position: int, stream: int) -> None:
    """Refuse a position that the stream does not hold, or can no longer be cut back to.

    Raises:
        EngineError: ``wrong_position`` or, for a recurrent state, ``unsupported_op``.
    """
    if not 0 <= position <= held.position:
        raise _refuse("wrong_position", f"a position of 0 to {held.position}", position, stream)
    if 0 < position < held.cut_floor:
        wanted = f"position 0 or {held.cut_floor} to {held.position}, the last round's"
        raise _refuse("unsupported_op", wanted, position, stream)


def _calls(entries: Sequence[Entry], begin: int, end: int) -> Iterator[tuple[Piece, ...]]:
    """Yield what is computed together of the rows ``begin..end``.

    llama.cpp computes sequences together where each has equally many rows and their ids follow each
    other; so every call here is one of its micro-batches, and its rows keep their order.
    """
    pieces = sorted(_pieces(entries, begin, end), key=lambda piece: piece.slot)
    call: list[Piece] = []
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


def _pieces(entries: Sequence[Entry], begin: int, end: int) -> Iterator[Piece]:
    for entry in entries:
        low, high = max(entry.begin, begin), min(entry.end, end)
        if low < high:
            yield Piece(entry.slot, entry.first + low - entry.begin, low, high)


def _refuse(reason: str, expected: str, got: object, stream: int | None = None) -> EngineError:
    where = "" if stream is None else f" for stream {stream}"
    text = f"llamacpp engine: plan: expected {expected}{where}, got {got}; no state was changed"
    return EngineError(text, reason=reason)
