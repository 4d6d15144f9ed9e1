"""Checks a plan against the open streams and lists what is to be computed, in order.

It changes no state. A piece, the rows of one stream between two cuts, is one call of the model.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN
from stagelink_transformers.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagelink.engine import EngineSettings, PlanLike


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What happens to one stream; ``begin..end`` are its rows in the round."""

    stream: int
    op: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The rows ``begin..end`` of a round: one stream's, computed in one call."""

    stream: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A checked plan: apply the entries, then compute the pieces."""

    entries: tuple[Entry, ...]
    pieces: tuple[Piece, ...]
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What an open stream holds: its positions, and the earliest one that it can be cut back to."""

    position: int
    oldest: int


def check_round(plan: PlanLike, held: Mapping[int, Held], settings: EngineSettings) -> Round:
    """Return the checked round.

    Raises:
        EngineError: With the code of docs/protocol.md 9 for the rule that is broken;
            ``history_gone`` for a position that is further back than what is kept.
    """
    entries = _check_entries(plan, held, settings)
    rows = entries[-1].end if entries else 0
    if plan.rows_total != rows:
        raise refuse("rows_count", f"{rows} rows, the sum of the entries", plan.rows_total)
    return Round(entries, tuple(_cut_pieces(entries, plan.cuts, rows)), rows)


def check_position(stream: int, position: int, held: Held) -> None:
    """Refuse to cut a stream to a position that it does not hold or cannot go back to.

    Raises:
        EngineError: ``wrong_position`` or ``history_gone``.
    """
    if not 0 <= position <= held.position:
        raise refuse("wrong_position", f"a position of 0 to {held.position}", position, stream)
    if position < held.oldest:
        raise refuse("history_gone", f"a position of at least {held.oldest}", position, stream)


def _check_entries(
    plan: PlanLike, held: Mapping[int, Held], settings: EngineSettings
) -> tuple[Entry, ...]:
    columns = (plan.ids, plan.ops, plan.firsts, plan.rows)
    if len({len(column) for column in columns}) > 1:
        raise refuse("rows_count", "columns of one length", [len(column) for column in columns])
    if len(plan.ids) > settings.streams_max:
        raise refuse("too_many_streams", f"at most {settings.streams_max}", len(plan.ids))
    entries: list[Entry] = []
    begin, last, free = 0, -1, settings.streams_max - len(held)
    for stream, op, first, rows in zip(*columns, strict=True):
        if stream <= last:
            raise refuse("streams_order", f"an id above {last}", stream)
        last = stream
        entry = Entry(stream, op, first, begin, begin + rows)
        _check_entry(entry, held.get(stream), settings)
        free += {OPEN: -1, CONTINUE: 0}.get(op, 1)
        if free < 0:
            raise refuse("streams_full", f"at most {settings.streams_max} open streams", stream)
        entries.append(entry)
        begin = entry.end
    if begin > settings.rows_max:
        raise refuse("too_many_rows", f"at most {settings.rows_max} rows a round", begin)
    return tuple(entries)


def _check_entry(entry: Entry, held: Held | None, settings: EngineSettings) -> None:
    stream, op, first, rows = entry.stream, entry.op, entry.first, entry.end - entry.begin
    if op not in (OPEN, CONTINUE, CLOSE, CANCEL):
        raise refuse("unsupported_op", "open, continue, close or cancel", f"op {op}", stream)
    if op == OPEN and held is not None:
        raise refuse("stream_reused", "a stream that is not open", "an open one", stream)
    if op != OPEN and held is None:
        raise refuse("unknown_stream", "an open stream", "one that is not open", stream)
    if op in (CLOSE, CANCEL):
        if rows != 0:
            raise refuse("rows_with_close", "0 rows with a close", rows, stream)
        return
    if rows < 1:
        raise refuse("rows_missing", "at least 1 row", rows, stream)
    if op == OPEN and first != 0:
        raise refuse("open_first", "an open at position 0", first, stream)
    if held is not None:
        check_position(stream, first, held)
    if first + rows > settings.context:
        raise refuse("context_overrun", f"{settings.context} positions", first + rows, stream)


def _cut_pieces(entries: Sequence[Entry], cuts: Sequence[int], rows: int) -> list[Piece]:
    last = 0
    for cut in cuts:
        if not 0 < cut < rows:
            raise refuse("cut_outside", f"a cut above 0 and below {rows}", cut)
        if cut <= last:
            raise refuse("cut_order", f"a cut above {last}", cut)
        last = cut
    pieces = []
    for low, high in itertools.pairwise([0, *cuts, rows]):
        for entry in entries:
            begin, end = max(low, entry.begin), min(high, entry.end)
            if begin < end:
                pieces.append(Piece(entry.stream, begin, end))
    return pieces
