"""A round's plan, checked whole against the open streams and turned into batches.

It changes no state: what a round would do is a value, and the engine applies it. The rules are
those of docs/protocol.md 6.7, the batches those of docs/exactness.md.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from stagelink.engine.seam import EngineSettings, PlanLike
    from stagelink.errors import EngineError


# Stream ops and return choices: the numbers of docs/protocol.md 6.7.
OPEN, CONTINUE, CLOSE, CANCEL, RESUME = 1, 2, 3, 4, 5
RETURN_ALL, RETURN_LAST, RETURN_NONE = 1, 2, 3


class Refuse(Protocol):
    """Builds an engine's error of one broken rule."""

    def __call__(
        self, reason: str, expected: str, got: object, stream: int | None = None
    ) -> EngineError:
        """Return the error; the caller raises it."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What a round does with one stream; rows ``begin..end`` of the round are its own."""

    stream: int
    op: int
    first: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """Rows that the stream brings."""
        return self.end - self.begin

    @property
    def last(self) -> int:
        """Positions that the stream holds afterwards."""
        return self.first + self.rows


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

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of all batches in order, their rows counted from the round's first."""
        for batch in self.batches:
            for piece in batch.pieces:
                begin, end = batch.begin + piece.begin, batch.begin + piece.end
                yield Piece(piece.stream, piece.first, begin, end)


def check_round(
    plan: PlanLike,
    held: Mapping[int, int],
    free: int,
    settings: EngineSettings,
    *,
    refuse: Refuse,
    check_cut: Callable[[int, int], None] | None = None,
) -> Round:
    """Return the checked round.

    Args:
        plan: The columns.
        held: Positions that each open stream holds.
        free: Slots that no stream holds.
        settings: The limits.
        refuse: Builds the error of a broken rule.
        check_cut: Called as ``check_cut(stream, position)`` for every continue, the position being
            one that the stream holds; raises `EngineChecks.gone` where it can no longer be reached.

    Raises:
        EngineError: With the reason code of docs/protocol.md 9 for the rule that is broken.
    """
    columns = (plan.ids, plan.ops, plan.firsts, plan.rows)
    if len({len(column) for column in columns}) > 1:
        raise refuse("rows_count", "columns of one length", [len(column) for column in columns])
    if len(plan.ids) > settings.streams_max:
        raise refuse("too_many_streams", f"at most {settings.streams_max}", len(plan.ids))
    entries: list[Entry] = []
    begin, last = 0, -1
    for stream, op, first, rows in zip(*columns, strict=True):
        if stream <= last:
            raise refuse("streams_order", f"an id above {last}", stream)
        last = stream
        entry = Entry(stream, op, first, begin, begin + rows)
        _check_entry(entry, held.get(stream), settings, refuse, check_cut)
        free += {OPEN: -1, CONTINUE: 0}.get(op, 1)
        if free < 0:
            raise refuse("streams_full", f"at most {settings.streams_max} open streams", stream)
        entries.append(entry)
        begin = entry.end
    if begin > settings.rows_max:
        raise refuse("too_many_rows", f"at most {settings.rows_max} rows a round", begin)
    if plan.rows_total != begin:
        raise refuse("rows_count", f"{begin} rows, the sum of the entries", plan.rows_total)
    _check_cuts(plan.cuts, begin, refuse)
    return Round(tuple(entries), tuple(_batches(entries, plan.cuts, begin)), begin)


def check_position(stream: int, position: int, held: int, refuse: Refuse) -> None:
    """Refuse a position that a stream does not hold.

    Raises:
        EngineError: ``wrong_position``.
    """
    if not 0 <= position <= held:
        raise refuse("wrong_position", f"a position of 0 to {held}", position, stream)


def _check_entry(
    entry: Entry,
    held: int | None,
    settings: EngineSettings,
    refuse: Refuse,
    check_cut: Callable[[int, int], None] | None,
) -> None:
    """Check one entry by its op's rule."""
    stream, op, first = entry.stream, entry.op, entry.first
    if op not in (OPEN, CONTINUE, CLOSE, CANCEL):
        raise refuse("unsupported_op", "open, continue, close or cancel", f"op {op}", stream)
    if op == OPEN and held is not None:
        raise refuse("stream_reused", "a stream that is not open", "an open one", stream)
    if op != OPEN and held is None:
        raise refuse("unknown_stream", "an open stream", "one that is not open", stream)
    if op in (CLOSE, CANCEL):
        if entry.rows != 0:
            raise refuse("rows_with_close", "0 rows with a close", entry.rows, stream)
        return
    if entry.rows < 1:
        raise refuse("rows_missing", "at least 1 row", entry.rows, stream)
    if held is None and first != 0:
        raise refuse("open_first", "an open at position 0", first, stream)
    if held is not None:
        check_position(stream, first, held, refuse)
        if check_cut is not None:
            check_cut(stream, first)
    if entry.last > settings.context:
        raise refuse("context_overrun", f"{settings.context} positions", entry.last, stream)


def _check_cuts(cuts: Sequence[int], rows: int, refuse: Refuse) -> None:
    for before, cut in itertools.pairwise((0, *cuts)):
        if not 0 < cut < rows:
            raise refuse("cut_outside", f"a cut above 0 and below {rows}", cut)
        if cut <= before:
            raise refuse("cut_order", f"a cut above {before}", cut)


def _batches(entries: Sequence[Entry], cuts: Sequence[int], rows: int) -> Iterator[Batch]:
    """Cut the round's rows at ``cuts``, and each batch into the pieces of its streams."""
    for begin, end in itertools.pairwise((0, *cuts, rows) if rows else ()):
        pieces = []
        for entry in entries:
            low, high = max(entry.begin, begin), min(entry.end, end)
            if low < high:
                first = entry.first + low - entry.begin
                pieces.append(Piece(entry.stream, first, low - begin, high - begin))
        yield Batch(begin, end, tuple(pieces))
