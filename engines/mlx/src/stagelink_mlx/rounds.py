"""A plan, checked in full against the open streams and turned into the pieces that are computed.

It changes no state: what a round would do is a value, and the engine applies it.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stagelink.engine import EngineSettings, PlanLike

__all__ = ["Entry", "Held", "Piece", "Round", "check_round", "refuse"]


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """An open stream: the positions that it holds, and the first that a cut can go back to."""

    position: int
    earliest: int = 0

    def check_cut(self, stream: int, position: int) -> None:
        """Refuse a position that the stream does not hold, or cannot go back to."""
        if position != 0 and not self.earliest <= position <= self.position:
            back = f"0, or {self.earliest} to {self.position}" if self.earliest else None
            expected = f"a position of {back or f'0 to {self.position}'} for stream {stream}"
            raise refuse("wrong_position", expected, position)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What a round does with one stream; ``begin..end`` are its rows in the round."""

    stream: int
    op: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one stream that are computed together, from position ``first`` on."""

    stream: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """What a plan asks, after every check: apply the entries, then compute the pieces in order."""

    entries: tuple[Entry, ...]
    pieces: tuple[Piece, ...]
    rows: int


def check_round(
    plan: PlanLike, streams: Mapping[int, Held], free: int, settings: EngineSettings
) -> Round:
    """Return the checked round.

    Args:
        plan: The columns.
        streams: The open streams.
        free: Streams that can still be opened.
        settings: The limits.

    Raises:
        EngineError: With the reason code of docs/protocol.md 9 for the rule that is broken.
    """
    columns = (plan.ids, plan.ops, plan.firsts, plan.rows)
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise refuse("rows_count", "columns of one length", lengths)
    if lengths[0] > settings.streams_max:
        raise refuse("too_many_streams", f"at most {settings.streams_max} entries", lengths[0])
    entries: list[Entry] = []
    for stream, op, first, rows in zip(*columns, strict=True):
        begin = entries[-1].end if entries else 0
        if entries and stream <= entries[-1].stream:
            raise refuse("streams_order", f"an id above {entries[-1].stream}", stream)
        entries.append(Entry(stream, op, first, begin, begin + rows))
        free += _check_entry(entries[-1], streams.get(stream), settings)
        if free < 0:
            most = f"at most {settings.streams_max} open streams"
            raise refuse("streams_full", most, f"stream {stream}")
    rows = entries[-1].end if entries else 0
    if rows > settings.rows_max:
        raise refuse("too_many_rows", f"at most {settings.rows_max} rows a round", rows)
    if plan.rows_total != rows:
        raise refuse("rows_count", f"{rows} rows, the sum of the entries", plan.rows_total)
    return Round(tuple(entries), tuple(_pieces(entries, plan.cuts, rows)), rows)


def refuse(reason: str, expected: str, got: object) -> EngineError:
    """Build the error of a call that breaks a rule, before it has changed anything."""
    text = f"mlx engine: expected {expected}, got {got}; no state was changed"
    return EngineError(text, reason=reason)


def _check_entry(entry: Entry, held: Held | None, settings: EngineSettings) -> int:
    """Check one entry by its op's rule; return the streams that it frees (-1: it takes one)."""
    rows = entry.end - entry.begin
    if entry.op not in (OPEN, CONTINUE, CLOSE, CANCEL):
        raise refuse("unsupported_op", "open, continue, close or cancel", f"op {entry.op}")
    if entry.op == OPEN and held is not None:
        raise refuse("stream_reused", f"stream {entry.stream} not to be open", "an open one")
    if entry.op != OPEN and held is None:
        raise refuse("unknown_stream", "an open stream", f"stream {entry.stream}")
    if entry.op in (CLOSE, CANCEL):
        if rows:
            raise refuse("rows_with_close", "no rows with a close", rows)
        return 1
    if rows < 1:
        raise refuse("rows_missing", f"at least 1 row for stream {entry.stream}", rows)
    if held is None and entry.first != 0:
        raise refuse("open_first", "an open at position 0", entry.first)
    if held is not None:
        held.check_cut(entry.stream, entry.first)
    if entry.first + rows > settings.context:
        most = f"at most {settings.context} positions for stream {entry.stream}"
        raise refuse("context_overrun", most, entry.first + rows)
    return -1 if held is None else 0


def _pieces(entries: Sequence[Entry], cuts: Sequence[int], rows: int) -> Iterator[Piece]:
    """Cut the rows of the round at ``cuts``, and what lies between at the streams' borders."""
    for before, cut in itertools.pairwise((0, *cuts)):
        if not 0 < cut < rows:
            raise refuse("cut_outside", f"a cut above 0 and below {rows}", cut)
        if cut <= before:
            raise refuse("cut_order", f"a cut above {before}", cut)
    for begin, end in itertools.pairwise((0, *cuts, rows)):
        for entry in entries:
            low, high = max(entry.begin, begin), min(entry.end, end)
            if low < high:
                yield Piece(entry.stream, entry.first + low - entry.begin, low, high)
