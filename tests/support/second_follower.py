"""A follower written from docs/protocol.md alone: it joins a ring and returns its rows unchanged.

It is the last rank, on plain sockets, without an engine; it says nothing about speed.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

from tests.support.second_reader.handshake import CONTROL
from tests.support.second_reader.link import rows_due
from tests.support.second_reader.plan import Streams, parse_plan
from tests.support.second_reader.wire import Refusal
from tests.support.second_stage import SECONDS, ZEROS, Line, Peer, Stage, prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.second_reader.plan import Plan


class SecondFollower(Peer):
    """The last rank of a ring; ``run`` returns when the lead said bye.

    Args:
        stage: What it says of itself.
        lead: The lead's address.
        keepalive_seconds: How often it sends progress.
        change: What becomes of the returned rows: round, count, bytes to the same three.
        settings: The key, the fingerprint and its fields, and whether frames carry checksums.
    """

    def __init__(
        self,
        stage: Stage,
        lead: tuple[str, int],
        *,
        keepalive_seconds: float = 0.2,
        change: Callable[[int, int, bytes], tuple[int, int, bytes]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(stage, launch_id=ZEROS, **settings)
        self.rounds: list[int] = []
        self._lead = lead
        self._interval = keepalive_seconds
        self._change = change or (lambda number, count, rows: (number, count, rows))
        self._counter = 0
        self._progress_due = time.monotonic()
        self._streams = Streams(
            context=stage.context,
            states=stage.streams_max,
            kv_rows=stage.context * stage.streams_max,
            rounds_in_flight_max=None,
        )

    def run(self) -> None:
        """Join, serve rounds until the lead's bye, answer it."""
        try:
            self._boot()
            while self._serve_one():
                pass
        finally:
            self.close()

    def _boot(self) -> None:
        """Section 5."""
        rank, world = self.stage.rank, self.stage.world
        self.control = control = self._dial(self._lead, CONTROL, 0)
        control.end = self._link_end("follower_control", 0)
        control.send("describe", self.stage.describe(*self.address))
        roster, _ = control.receive_kind("roster")
        after = (rank + 1) % world
        address = (roster["addresses"][after], roster["ports"][after])
        self._close_ring(address, after, rank - 1)
        control.send("ready", prefix(2) + rank.to_bytes(4, "little") + bytes(28))
        control.receive_kind("open")

    def _wait(self, lines: list[Line]) -> list[Line]:
        """Until one of the lines can be read, with progress told in between."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if time.monotonic() >= self._progress_due:
                self._tell_progress()
            sockets = [line.socket for line in lines]
            readable, _, _ = select.select(sockets, [], [], self._interval / 4)
            if readable:
                return [line for line in lines if line.socket in readable]
        raise Refusal("deadline")

    def _tell_progress(self) -> None:
        """Section 6.5: idle, the counter one further."""
        self._counter += 1
        payload = self.stage.rank.to_bytes(4, "little") + bytes([4, 0, 0, 0]) + bytes(8)
        payload += self._counter.to_bytes(8, "little") + bytes(16)
        self._progress_due = time.monotonic() + self._interval
        self.control.send("progress", payload)

    def _serve_one(self) -> bool:
        """Whatever came on the control link, or a credit; whether the ring goes on."""
        for line in self._wait([self.control, self.outgoing]):
            kind, value, payload = line.receive()
            if kind == "bye" and line is self.control:
                self.control.send("bye")
                self.outgoing.send("bye")
                return False
            if kind == "plan":
                plan = parse_plan(payload, self.stage.setting(0))
                self._streams.admit(plan)
                if plan.rows_total:
                    self._serve_round(value["round"], plan)
        return True

    def _serve_round(self, number: int, plan: Plan) -> None:
        """Rows in, a credit back, the rows that return out."""
        rows = self._receive_rows(number, *rows_due(plan, self.stage.shape, returning=False))
        row = self.stage.width * 4
        back = b"".join(rows[at * row : (at + 1) * row] for at in plan.returned_offsets)
        sent, count, back = self._change(number, len(plan.returned_offsets), back)
        self._send_rows(sent, count, back)
        self.rounds.append(number)
