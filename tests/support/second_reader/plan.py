"""The plan of section 6.7, and a follower's streams, which admit it or refuse it (section 7).

It knows plans as payloads; the frame around one is wire.py's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.second_reader.messages import Setting, read_prefix
from tests.support.second_reader.wire import Fields, refuse_unless

OPEN, CONTINUE, CLOSE, CANCEL, RESUME = 1, 2, 3, 4, 5
RETURN_ALL, RETURN_LAST, RETURN_NONE = 1, 2, 3
RETURNS, TOKEN_IDS, TAP_SUMS, CACHE_KEYS = 1, 2, 4, 8


@dataclasses.dataclass(frozen=True)
class Entry:
    """One stream of a plan."""

    id: int
    op: int
    first: int
    rows: int
    accepted: int
    resume: int
    generation: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan whose own rules hold."""

    entries: tuple[Entry, ...]
    cuts: tuple[int, ...]
    blocks: int
    returns: tuple[int, ...]
    token_ids: tuple[int, ...]
    cache_keys: tuple[bytes, ...]

    @property
    def rows_total(self) -> int:
        """Rows that go forward."""
        return sum(entry.rows for entry in self.entries)

    @property
    def returned_offsets(self) -> list[int]:
        """Row offsets in the round of the rows that return to rank 0."""
        offsets: list[int] = []
        start = 0
        for entry, choice in zip(self.entries, self.returns, strict=True):
            end = start + entry.rows
            if choice == RETURN_ALL:
                offsets += range(start, end)
            elif choice == RETURN_LAST:
                offsets.append(end - 1)
            start = end
        return offsets

    def value(self) -> dict[str, Any]:
        """What a vector's value says of a plan."""
        found: dict[str, Any] = {
            "entries": [list(dataclasses.astuple(entry)) for entry in self.entries],
            "cuts": list(self.cuts),
            "blocks": self.blocks,
            "rows_total": self.rows_total,
            "rows_returned": len(self.returned_offsets),
            "returned_offsets": self.returned_offsets,
        }
        if self.blocks & RETURNS:
            found["returns"] = list(self.returns)
        if self.blocks & TOKEN_IDS:
            found["token_ids"] = list(self.token_ids)
        if self.blocks & CACHE_KEYS:
            found["cache_keys"] = [key.hex() for key in self.cache_keys]
        return found


def parse_plan(payload: bytes, setting: Setting) -> Plan:
    """Everything that a plan must be by itself."""
    fields = Fields(payload)
    read_prefix(fields, 3)
    streams, cut_count, blocks = fields.number(4), fields.number(4), fields.number(4)
    refuse_unless(streams <= setting.streams_max, "too_many_streams", f"{streams}")
    refuse_unless(blocks & ~0xF == 0, "unknown_block")
    refuse_unless(blocks & ~setting.blocks == 0, "unsupported_block")
    refuse_unless(blocks == 0 or streams > 0, "unsupported_block", "in a keep-alive")
    refuse_unless(not blocks & TAP_SUMS or setting.draft_width > 0, "unsupported_block", "taps")
    fields.zeros(4)
    entries: list[Entry] = []
    for _ in range(streams):
        entries.append(_read_entry(fields, setting, entries[-1].id if entries else -1))
    rows = sum(entry.rows for entry in entries)
    refuse_unless(rows <= setting.rows_max, "too_many_rows", f"{rows}")
    refuse_unless(cut_count == 0 or cut_count < rows, "cut_outside", f"{cut_count} cuts")
    cuts: list[int] = []
    for _ in range(cut_count):
        cut = fields.number(4)
        refuse_unless(not cuts or cuts[-1] < cut, "cut_order")
        refuse_unless(0 < cut < rows, "cut_outside", f"{cut}")
        cuts.append(cut)
    returns = _read_returns(fields, entries, present=bool(blocks & RETURNS))
    token_ids = [fields.number(4) for _ in range(rows)] if blocks & TOKEN_IDS else []
    keys = [fields.take(16) for _ in entries] if blocks & CACHE_KEYS else []
    fields.end()
    return Plan(tuple(entries), tuple(cuts), blocks, returns, tuple(token_ids), tuple(keys))


def _read_entry(fields: Fields, setting: Setting, id_before: int) -> Entry:
    """One entry of 28 bytes and the rules of its op."""
    fields_of_entry = Fields(fields.take(28))
    number = fields_of_entry.number(4)
    refuse_unless(number > id_before, "streams_order")
    op = fields_of_entry.number(1)
    refuse_unless(OPEN <= op <= RESUME, "bad_op", f"{op}")
    refuse_unless(setting.ops >> op & 1 == 1, "unsupported_op", f"{op}")
    fields_of_entry.zeros(3)
    first, rows, accepted, resume, generation = (fields_of_entry.number(4) for _ in range(5))
    if op == OPEN:
        refuse_unless(first == 0, "open_first")
    if op in (CLOSE, CANCEL):
        refuse_unless(rows == 0, "rows_with_close")
        refuse_unless(accepted == 0, "close_accepted")
    else:
        refuse_unless(rows > 0, "rows_missing")
    if op in (OPEN, RESUME):
        refuse_unless(accepted == 0, "open_accepted")
    if op == RESUME:
        refuse_unless(0 < resume <= first, "resume_point")
    else:
        refuse_unless(resume == 0, "resume_not_zero")
    if op in (OPEN, RESUME):
        refuse_unless(generation == 0, "open_generation")
    return Entry(number, op, first, rows, accepted, resume, generation)


def _read_returns(fields: Fields, entries: list[Entry], *, present: bool) -> tuple[int, ...]:
    """Block 0, or what its absence means: every row returns."""
    if not present:
        return tuple(RETURN_ALL if entry.rows else RETURN_NONE for entry in entries)
    choices = tuple(fields.number(1) for _ in entries)
    for entry, choice in zip(entries, choices, strict=True):
        refuse_unless(RETURN_ALL <= choice <= RETURN_NONE, "bad_returns", f"{choice}")
        refuse_unless(entry.rows > 0 or choice == RETURN_NONE, "bad_returns")
    fields.zeros(-len(entries) % 4)
    return choices


@dataclasses.dataclass
class Stream:
    """What a stage keeps of one stream."""

    position: int
    generation: int
    rows: int


class Streams:
    """Every open stream of a follower."""

    def __init__(
        self, *, context: int, states: int, kv_rows: int, rounds_in_flight_max: int | None
    ) -> None:
        self._context = context
        self._states = states
        self._kv_rows = kv_rows
        self._rounds_max = rounds_in_flight_max
        self._open: dict[int, Stream] = {}
        self._last_opened = -1
        self._unfinished = 0

    def admit(self, plan: Plan) -> None:
        """Apply a plan, or raise and change nothing."""
        unfinished = self._unfinished + (1 if plan.rows_total else 0)
        limit = self._rounds_max
        refuse_unless(limit is None or unfinished <= limit, "too_many_rounds")
        after = {number: dataclasses.replace(s) for number, s in self._open.items()}
        last_opened = self._last_opened
        for entry in plan.entries:
            if entry.op in (OPEN, RESUME):
                refuse_unless(entry.id > last_opened, "stream_reused", f"{entry.id}")
                refuse_unless(len(after) < self._states, "streams_full")
                last_opened = entry.id
                after[entry.id] = Stream(0, 1 if entry.op == RESUME else 0, 0)
            else:
                refuse_unless(entry.id in after, "unknown_stream", f"{entry.id}")
            self._apply(after, entry)
        refuse_unless(sum(s.position for s in after.values()) <= self._kv_rows, "kv_full")
        self._open, self._last_opened, self._unfinished = after, last_opened, unfinished

    def _apply(self, after: dict[int, Stream], entry: Entry) -> None:
        """One entry on the copy of the streams."""
        stream = after[entry.id]
        if entry.op in (CONTINUE, CLOSE, CANCEL):
            refuse_unless(entry.generation == stream.generation, "stale_generation")
        if entry.op in (CLOSE, CANCEL):
            del after[entry.id]
            return
        if entry.op == CONTINUE:
            refuse_unless(entry.accepted <= stream.rows, "accepted_outside")
            kept = stream.position - stream.rows + entry.accepted
            refuse_unless(entry.first == kept, "wrong_position", f"{entry.first}, not {kept}")
            stream.generation += 1 if entry.accepted < stream.rows else 0
        stream.position, stream.rows = entry.first + entry.rows, entry.rows
        refuse_unless(stream.position <= self._context, "context_overrun")

    def value(self) -> dict[str, list[int]]:
        """Position and generation of each open stream, by id."""
        return {str(n): [s.position, s.generation] for n, s in sorted(self._open.items())}
