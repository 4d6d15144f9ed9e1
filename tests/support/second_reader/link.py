"""One end of one link after the handshake: sequence, state table, credits, rows (3.1, 6.6, 10).

It is told what arrives and what this end sends; it opens no socket.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.second_reader import messages
from tests.support.second_reader.plan import TAP_SUMS, Plan, parse_plan
from tests.support.second_reader.wire import (
    GIB,
    NUMBERED_BY_ROUND,
    Header,
    Refusal,
    parse_header,
    payload_of,
    refuse_unless,
)

DTYPE_BYTES = {1: 4, 2: 2, 3: 2}

# (end, state) -> kinds that may arrive -> the state after each. Fate is added everywhere.
RECEIVE = {
    ("lead_control", "refusing"): {},
    ("lead_control", "linked"): {"describe": "described", "progress": "linked"},
    ("lead_control", "described"): {"progress": "described", "ready": "ready"},
    ("lead_control", "ready"): {"progress": "ready"},
    ("lead_control", "open"): {"progress": "open"},
    ("lead_control", "said bye"): {
        "progress": "said bye",
        "figures": "said bye",
        "bye": "closing",
    },
    ("follower_control", "linked"): {"roster": "placed", "progress": "linked"},
    ("follower_control", "placed"): {"progress": "placed"},
    ("follower_control", "ready"): {"progress": "ready", "open": "open"},
    ("follower_control", "open"): {"plan": "open", "cancel": "open", "bye": "closing"},
    ("ring_acceptor", "linked"): {"rows": "linked", "bye": "closing"},
    ("ring_connector", "linked"): {"credit": "linked", "bye": "closing"},
    ("bulk_acceptor", "linked"): {"rows": "linked"},
    ("bulk_connector", "linked"): {"credit": "linked"},
}
SEND = {
    ("lead_control", "ready", "open"): "open",
    ("lead_control", "open", "bye"): "said bye",
    ("follower_control", "placed", "ready"): "ready",
}


@dataclasses.dataclass(frozen=True)
class RowsShape:
    """What both ends know of a boundary's rows."""

    width: int
    planes: int
    row_dtype: int
    draft_width: int

    def plane_bytes(self, count: int) -> int:
        """Bytes of one plane of ``count`` rows."""
        return count * self.width * DTYPE_BYTES[self.row_dtype]

    def payload_bytes(self, count: int, *, taps: bool) -> int:
        """Bytes of a rows frame of ``count`` rows."""
        return self.planes * self.plane_bytes(count) + (count * 4 * self.draft_width * taps)


def is_bulk(payload_bytes: int) -> bool:
    """Whether a rows frame travels on the bulk lane (6.6)."""
    return payload_bytes > 65_536


def rows_due(plan: Plan, shape: RowsShape, *, returning: bool) -> tuple[int, int]:
    """Count and payload bytes of the rows frame that a plan asks for."""
    count = len(plan.returned_offsets) if returning else plan.rows_total
    return count, shape.payload_bytes(count, taps=bool(plan.blocks & TAP_SUMS))


def check_rows(header: Header, round_number: int, count: int, payload_bytes: int) -> None:
    """A rows or tokens frame against what is due (6.6)."""
    refuse_unless(header.sequence == round_number, "rows_round", f"{header.sequence}")
    if header.kind == "tokens":
        refuse_unless(header.count == count, "tokens_count", f"{header.count}")
        refuse_unless(header.payload_bytes == 4 * count, "payload_size")
        return
    refuse_unless(header.count == count, "rows_count", f"{header.count}")
    refuse_unless(header.payload_bytes == payload_bytes, "rows_size", f"{header.payload_bytes}")


class LinkEnd:
    """One end of a control or ring link.

    Args:
        end: ``lead_control``, ``follower_control``, ``ring_acceptor`` or ``ring_connector``.
        state: Where in section 10 it begins.
        setting: Rank of the other end, world, and this end's own limits.
        lane: Of a ring link: 0 the row lane, 1 the bulk lane, where credits are posted buffers.
        rounds: Of a ring acceptor: round, count and bytes of each rows frame due, in order.
    """

    def __init__(
        self,
        end: str,
        state: str,
        setting: messages.Setting,
        *,
        own_rank: int,
        checksum: bool = True,
        sequence: int = 2,
        first_round: int = 1,
        buffers: int = 2,
        lane: int = 0,
        sampler: int = 1,
        rounds: list[tuple[int, int, int]] | None = None,
    ) -> None:
        self.state = state
        self._end = end.replace("ring", "bulk") if lane else end
        self._setting = setting
        self._checksum = checksum
        self._sequence = sequence
        self._round = first_round
        self._buffers = buffers
        self.credits = 0 if lane else buffers
        self._takes_tokens = own_rank == 0 and sampler == 2
        self._rounds = list(rounds or [])
        self._counter = 0

    def expect_rows(self, round_number: int, count: int, payload_bytes: int) -> None:
        """A plan has come whose rows are due on this link."""
        self._rounds.append((round_number, count, payload_bytes))

    def send(self, kind: str) -> None:
        """This end sends a frame of ``kind``."""
        if kind == "rows":
            refuse_unless(self.credits > 0, "no_credit")
            self.credits -= 1
        elif kind == "credit":
            self.credits += 1
        self.state = SEND.get((self._end, self.state, kind), self.state)

    def receive(self, data: bytes) -> tuple[Header, dict[str, Any]]:
        """A frame has come: its header and what its payload says."""
        header = parse_header(data, checksum=self._checksum, payload_max=GIB)
        self._check_sequence(header)
        self._check_state(header.kind)
        if header.kind in ("rows", "tokens"):
            self._check_rows(header)
        value = self._parse(header, payload_of(header, data))
        if header.kind == "plan":
            self._round += 1
        elif header.kind not in NUMBERED_BY_ROUND:
            self._sequence += 1
        return header, value

    def _check_sequence(self, header: Header) -> None:
        if header.kind == "plan":
            takes = "plan" in RECEIVE.get((self._end, self.state), {})
            due = not takes or header.sequence == self._round
        else:
            due = header.kind in NUMBERED_BY_ROUND or header.sequence == self._sequence
        refuse_unless(due, "bad_sequence", f"{header.kind} {header.sequence}")

    def _check_state(self, kind: str) -> None:
        """Section 10."""
        if kind == "fate":
            self.state = "ended"
            return
        allowed = RECEIVE.get((self._end, self.state), {})
        if self._takes_tokens and kind in ("rows", "tokens") and "rows" in allowed:
            allowed = {"tokens": self.state}
        if kind not in allowed:
            raise Refusal("unexpected_kind", f"{kind} in state {self.state}")
        self.state = allowed[kind]

    def _check_rows(self, header: Header) -> None:
        refuse_unless(self.credits > 0, "no_credit")
        refuse_unless(bool(self._rounds), "rows_round")
        round_number, count, payload_bytes = self._rounds[0]
        check_rows(header, round_number, count, payload_bytes)
        self.credits -= 1
        del self._rounds[0]

    def _parse(self, header: Header, payload: bytes) -> dict[str, Any]:
        value = parse_payload(header, payload, self._setting)
        if header.kind == "progress":
            refuse_unless(value["counter"] >= self._counter, "progress_backwards")
            self._counter = value["counter"]
        elif header.kind == "credit":
            refuse_unless(self.credits + header.count <= self._buffers, "credit_overflow")
            self.credits += header.count
        elif header.kind == "open":
            self._round = value["first_round"]
        return value


def parse_payload(header: Header, payload: bytes, setting: messages.Setting) -> dict[str, Any]:
    """What a payload says, whatever its kind; a handshake frame's is the handshake's affair."""
    match header.kind:
        case "describe":
            return messages.parse_describe(payload, setting)
        case "ready":
            return messages.parse_ready(payload, setting)
        case "plan":
            return parse_plan(payload, setting).value()
        case "progress":
            return messages.parse_progress(payload, setting)
        case "figures":
            return messages.parse_figures(payload, setting)
        case "fate":
            return messages.parse_fate(payload, setting)
        case "roster":
            return messages.parse_roster(payload, setting)
        case "open":
            return messages.parse_open(payload)
        case "cancel":
            return messages.parse_cancel(payload)
        case "tokens":
            numbers = range(0, len(payload), 4)
            return {"token_ids": [int.from_bytes(payload[i : i + 4], "little") for i in numbers]}
    return {}
