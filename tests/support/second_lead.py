"""A lead written from docs/protocol.md alone: rank 0 of two, which sends what a test tells it to.

It computes nothing and plans nothing; it says nothing about speed.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from tests.support.second_reader.handshake import CONTROL
from tests.support.second_reader.link import rows_due
from tests.support.second_reader.messages import check_layout, parse_describe
from tests.support.second_reader.plan import parse_plan
from tests.support.second_reader.wire import NUMBERED_BY_ROUND, Refusal
from tests.support.second_stage import Line, Peer, Stage, prefix

OPEN, CONTINUE, CLOSE = 1, 2, 3


def entry(
    stream: int, op: int, first: int, rows: int, accepted: int = 0, *, generation: int = 0
) -> bytes:
    """The 28 bytes of one stream of a plan."""
    numbers = [(stream, 4), (op, 1), (0, 3), (first, 4), (rows, 4), (accepted, 4), (0, 4)]
    numbers.append((generation, 4))
    return b"".join(value.to_bytes(size, "little") for value, size in numbers)


def plan(*entries: bytes, returns: bytes = b"") -> bytes:
    """A plan's payload, with a returns block where choices are given."""
    head = prefix(3) + len(entries).to_bytes(4, "little") + bytes(4)
    head += (1 if returns else 0).to_bytes(4, "little") + bytes(4)
    return head + b"".join(entries) + returns + bytes(-len(returns) % 4)


class SecondLead(Peer):
    """Rank 0 of a ring of two: ``boot``, then ``go_round`` and ``say_bye``, then ``close``."""

    def __init__(self, stage: Stage, **settings: Any) -> None:
        super().__init__(stage, launch_id=secrets.token_bytes(16), **settings)
        self.control: Line
        self.described: dict[str, Any] = {}
        self.round = 0

    def boot(self, *, keepalive_ms: int = 500, silent_intervals: int = 3) -> None:
        """Section 5, up to the open message."""
        accepted: list[Line] = []
        self._accept(CONTROL, 1, accepted.append)
        self.control = accepted.pop()
        self.control.end = self._link_end("lead_control", 1)
        self.described, payload = self.control.receive_kind("describe")
        own = parse_describe(self.stage.describe(*self.address))
        check_layout([own, parse_describe(payload)])
        self.control.send("roster", self._roster(own, self.described))
        self._close_ring((self.described["address"], self.described["port"]), 1, 1)
        self.control.receive_kind("ready")
        timers = keepalive_ms.to_bytes(4, "little") + silent_intervals.to_bytes(4, "little")
        self.control.send("open", (1).to_bytes(8, "little") + timers + bytes(16))

    @staticmethod
    def _roster(*stages: dict[str, Any]) -> bytes:
        """Section 6.2."""
        payload = len(stages).to_bytes(4, "little") + bytes(4)
        for stage in stages:
            for name in ("rank", "first", "end"):
                payload += stage[name].to_bytes(4, "little")
            address, host = stage["address"].encode(), stage["host"].encode()
            payload += stage["port"].to_bytes(2, "little") + bytes([len(address), len(host)])
            payload += address + host
        return payload

    def send_plan(self, payload: bytes, *, ahead: int = 1) -> int:
        """Send a plan; ``ahead`` other than 1 breaks the order of rounds."""
        self.round += ahead
        self.control.send("plan", payload, sequence=self.round)
        return self.round

    def go_round(self, payload: bytes, rows: bytes) -> bytes:
        """One round: plan, rows out, rows back."""
        number = self.send_plan(payload)
        due = parse_plan(payload, self.stage.setting(1))
        count, _ = rows_due(due, self.stage.shape, returning=False)
        self._send_rows(number, count, rows)
        return self._receive_rows(number, *rows_due(due, self.stage.shape, returning=True))

    def say_bye(self) -> None:
        """The orderly end: on every link; then the follower's answer, or its close."""
        for line in (self.incoming, self.outgoing, self.control):
            line.send("bye")
        self.control.receive_kind("bye")
        # A follower that closed already may have reset the ring link: as good as a bye (6.6).
        with contextlib.suppress(ConnectionError, Refusal):
            self.incoming.receive_kind("bye")

    def next_fate(self) -> None:
        """Read the control link until a fate raises, or the follower is gone."""
        while True:
            kind, _, _ = self.control.receive()
            if kind in NUMBERED_BY_ROUND:
                raise AssertionError(f"a follower sent {kind}")
