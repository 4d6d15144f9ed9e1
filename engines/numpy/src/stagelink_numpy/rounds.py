"""A plan, checked against the open streams and turned into batches; the composition rule.

It changes no state: what a round would do is a value, and the engine applies it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stagelink.engine import EngineSettings, PlanLike


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One stream of a round: what happens to it, and which rows of the round are its own."""

    stream: int
    op: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The rows ``begin..end`` of a batch that belong to one stream, from position ``first`` on."""

    stream: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The rows ``begin..end`` of a round that are computed together, stream by stream."""

    begin: int
    end: int
    pieces: tuple[Piece, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """What a plan asks, after every check: apply the entries, then compute the batches."""

    entries: tuple[Entry, ...]
    batches: tuple[Batch, ...]
    rows: int


def check_round(
    plan: PlanLike, positions: Mapping[int, int], free: int, settings: EngineSettings
) -> Round:
    """Return the checked round.

    Args:
        plan: The columns.
        positions: Positions that each open stream holds.
        free: Slots that no stream holds.
        settings: The limits.

    Raises:
        EngineError: With the reason code of docs/protocol.md 9 for the rule that is broken.
    """
    entries = _entries(plan, positions, free, settings)
    rows = entries[-1].end if entries else 0
    if plan.rows_total != rows:
        raise _refuse("rows_count", f"{rows} rows, the sum of the entries", plan.rows_total)
    return Round(entries, tuple(_batches(entries, plan.cuts, rows)), rows)


def _entries(
    plan: PlanLike, positions: Mapping[int, int], free: int, settings: EngineSettings
) -> tuple[Entry, ...]:
    """Check the entries in order, each against the state that the ones before it leave."""
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
        entry = Entry(stream, op, first, begin, begin + rows)
        free += _check_entry(entry, positions.get(stream), settings)
        if free < 0:
            raise _refuse("streams_full", f"at most {settings.streams_max} open streams", stream)
        entries.append(entry)
        begin = entry.end
    if begin > settings.rows_max:
        raise _refuse("too_many_rows", f"at most {settings.rows_max} rows a round", begin)
    return tuple(entries)


def _check_entry(entry: Entry, held: int | None, settings: EngineSettings) -> int:
    """Check one entry by its op's rule; return the slots that it frees (-1: it takes one)."""
    stream, op, first = entry.stream, entry.op, entry.first
    rows = entry.end - entry.begin
    if op not in (OPEN, CONTINUE, CLOSE, CANCEL):
        raise _refuse("unsupported_op", "open, continue, close or cancel", f"op {op}", stream)
    if op == OPEN and held is not None:
        raise _refuse("stream_reused", "a stream that is not open", "an open one", stream)
    if op != OPEN and held is None:
        raise _refuse("unknown_stream", "an open stream", "one that is not open", stream)
    if op in (CLOSE, CANCEL):
        if rows != 0:
            raise _refuse("rows_with_close", "0 rows with a close", rows, stream)
        return 1
    if rows < 1:
        raise _refuse("rows_missing", "at least 1 row", rows, stream)
    if op == OPEN and first != 0:
        raise _refuse("open_first", "an open at position 0", first, stream)
    if held is not None and not 0 <= first <= held:
        raise _refuse("wrong_position", f"a position of 0 to {held}", first, stream)
    if first + rows > settings.context:
        raise _refuse("context_overrun", f"{settings.context} positions", first + rows, stream)
    return -1 if op == OPEN else 0


def _batches(entries: Sequence[Entry], cuts: Sequence[int], rows: int) -> Iterator[Batch]:
    """Cut the round's rows at ``cuts`` and each batch into the pieces of its streams."""
    begin = 0
    for cut in cuts:
        if not 0 < cut < rows:
            raise _refuse("cut_outside", f"a cut above 0 and below {rows}", cut)
        if cut <= begin:
            raise _refuse("cut_order", f"a cut above {begin}", cut)
        yield Batch(begin, cut, _pieces(entries, begin, cut))
        begin = cut
    if rows > 0:
        yield Batch(begin, rows, _pieces(entries, begin, rows))


def _pieces(entries: Sequence[Entry], begin: int, end: int) -> tuple[Piece, ...]:
    """Return what each stream has in the rows ``begin..end``; offsets count from ``begin``."""
    pieces = []
    for entry in entries:
        low, high = max(entry.begin, begin), min(entry.end, end)
        if low < high:
            first = entry.first + low - entry.begin
            pieces.append(Piece(entry.stream, first, low - begin, high - begin))
    return tuple(pieces)


def _refuse(reason: str, expected: str, got: object, stream: int | None = None) -> EngineError:
    """Build the error of one broken rule."""
    where = "" if stream is None else f" for stream {stream}"
    text = f"numpy engine: plan: expected {expected}{where}, got {got}; no state was changed"
    return EngineError(text, reason=reason)
