"""A plan, checked against the open streams and the limits, as entries and batches.

It changes nothing: the engine applies what this returns. The rules are docs/protocol.md 6.7's.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN
from stagelink_torch.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stagelink.engine import EngineSettings, PlanLike


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What a round does with one stream; rows ``begin..end`` of the round are its own."""

    stream: int
    op: int
    first: int
    begin: int
    end: int

    @property
    def last(self) -> int:
        """Positions that the stream holds afterwards."""
        return self.first + self.end - self.begin


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Rows ``begin..end`` of a batch that are ``stream``'s, from position ``first`` on."""

    stream: int
    first: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPlan:
    """Rows ``begin..end`` of the round that are computed together."""

    begin: int
    end: int
    shares: tuple[Share, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A plan that breaks no rule."""

    entries: tuple[Entry, ...]
    batches: tuple[BatchPlan, ...]
    rows: int


def check_round(
    plan: PlanLike, positions: Mapping[int, int], free: int, settings: EngineSettings
) -> Round:
    """Return the round that a plan asks for.

    Args:
        plan: The columns.
        positions: Positions that each open stream holds.
        free: Slots that no stream holds.
        settings: The limits.

    Raises:
        EngineError: With the reason code of docs/protocol.md 9 of the broken rule.
    """
    entries = tuple(_entries(plan, settings))
    for entry in entries:
        free += _slots_freed(entry, positions.get(entry.stream), settings)
        if free < 0:
            most = f"at most {settings.streams_max} open streams"
            raise refuse("streams_full", most, f"stream {entry.stream} beside them")
    rows = entries[-1].end if entries else 0
    if rows > settings.rows_max:
        raise refuse("too_many_rows", f"at most {settings.rows_max} rows a round", rows)
    if plan.rows_total != rows:
        raise refuse("rows_count", f"{rows} rows, the sum of the entries", plan.rows_total)
    return Round(entries, tuple(_batches(entries, plan.cuts, rows)), rows)


def _entries(plan: PlanLike, settings: EngineSettings) -> Iterator[Entry]:
    """Yield the entries of columns that are one length and in order."""
    columns = plan.ids, plan.ops, plan.firsts, plan.rows
    lengths = [len(column) for column in columns]
    if min(lengths) != max(lengths):
        raise refuse("rows_count", "columns of one length", lengths)
    if lengths[0] > settings.streams_max:
        raise refuse("too_many_streams", f"at most {settings.streams_max} entries", lengths[0])
    for one, other in itertools.pairwise(plan.ids):
        if other <= one:
            raise refuse("streams_order", f"an id above {one}", other)
    begin = 0
    for stream, op, first, rows in zip(*columns, strict=True):
        yield Entry(stream, op, first, begin, begin + rows)
        begin += rows


def _slots_freed(entry: Entry, held: int | None, settings: EngineSettings) -> int:
    """Check an entry by the rule of its op; return the slots that it frees, -1 if it takes one."""
    stream, rows = entry.stream, entry.end - entry.begin
    if entry.op not in (OPEN, CONTINUE, CLOSE, CANCEL):
        known = "op open, continue, close or cancel"
        raise refuse("unsupported_op", known, f"op {entry.op}", stream)
    if entry.op == OPEN and held is not None:
        raise refuse("stream_reused", "a stream that is not open", "an open one", stream)
    if entry.op != OPEN and held is None:
        raise refuse("unknown_stream", "an open stream", "one that is not open", stream)
    if entry.op in (CLOSE, CANCEL):
        if rows:
            raise refuse("rows_with_close", "no rows with a close", rows, stream)
        return 1
    if rows < 1:
        raise refuse("rows_missing", "at least 1 row", rows, stream)
    if held is None and entry.first != 0:
        raise refuse("open_first", "an open at position 0", entry.first, stream)
    if held is not None and not 0 <= entry.first <= held:
        raise refuse("wrong_position", f"a position of 0 to {held}", entry.first, stream)
    if entry.last > settings.context:
        raise refuse("context_overrun", f"{settings.context} positions", entry.last, stream)
    return -1 if entry.op == OPEN else 0


def _batches(entries: Sequence[Entry], cuts: Sequence[int], rows: int) -> Iterator[BatchPlan]:
    """Yield the batches that the plan's cuts divide the round's rows into."""
    for before, cut in itertools.pairwise((0, *cuts)):
        if not 0 < cut < rows:
            raise refuse("cut_outside", f"a cut above 0 and below {rows}", cut)
        if cut <= before:
            raise refuse("cut_order", f"a cut above {before}", cut)
    if rows == 0:
        return
    for begin, end in itertools.pairwise((0, *cuts, rows)):
        shares = []
        for entry in entries:
            low, high = max(entry.begin, begin), min(entry.end, end)
            if low < high:
                first = entry.first + low - entry.begin
                shares.append(Share(entry.stream, first, low - begin, high - begin))
        yield BatchPlan(begin, end, tuple(shares))
