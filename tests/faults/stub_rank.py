"""One rank of a ring without a model, as a process of its own: it stays in one phase until the end.

It asserts nothing. It is told everything in one JSON argument, writes JSON lines, and a follower
reads the lead's address from its input once it has told its own. SIGUSR1 makes its engine hang.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

from stagelink import _native
from stagelink.errors import StagelinkError

WIDTH = 5120
ROW_BYTES = 4 * WIDTH
ROWS_MAX = 256
FIELDS = [bytes([index]) * 32 for index in range(8)]
TEXTS = ("test", "none", "none")
# What a rank does often enough to notice the end; a real engine's steps are as short.
STEP_SECONDS = 0.02


def say(event: str, **facts: Any) -> None:
    """Write one line: what happened, and when by the clock that all processes share."""
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


def description(rank: int, world: int) -> _native.Description:
    """A stage of ten layers; rows of 20 KiB."""
    version, backend, device = TEXTS
    return _native.Description(
        rank=rank,
        world=world,
        first=rank * 10,
        end=rank * 10 + 10,
        layers=world * 10,
        width=WIDTH,
        planes=1,
        row_dtype="float32",
        kv_dtype="float32",
        chunk_rows=ROWS_MAX,
        rows_max=ROWS_MAX,
        streams_max=2,
        context=1 << 24,
        states=2,
        kv_rows=1 << 26,
        weight_bytes=0,
        engine_version=version,
        backend=backend,
        device=device,
        host=f"host{rank}",
        rounds_in_flight_max=4,
    )


class Stub:
    """The rank: its ring, its engine that only takes time, and the rounds it has seen."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.rank: int = told["rank"]
        self.phase: str = told["phase"]
        self.is_wedged = False
        self.rounds = 0
        signal.signal(signal.SIGUSR1, self._wedge)

    def run(self) -> None:
        """Join, become ready, and stay in the phase."""
        told = self.told
        listener = _native.Listener(told["listen"])
        say("listening", address=listener.address)
        self.ring = _native.Ring.join(
            listener=listener,
            lead=None if self.rank == 0 else sys.stdin.readline().strip(),
            key_file=told["key_file"],
            launch_id=None,
            fields=FIELDS,
            description=description(self.rank, told["world"]),
            join_seconds=told["join_seconds"],
            keepalive_seconds=told["interval"],
            silent_intervals=3,
            suite=told["suite"],
        )
        say("joined", strangers=self.ring.strangers)
        if self.phase == "load":
            self.ring.progress("loading", busy_limit_seconds=told["busy"])
            say("running")
            self._stay("loading")
        self.ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=told["join_seconds"])
        if self.rank == 0:
            self._lead()
        else:
            self._follow()
        say("closed", rounds=self.rounds)

    def _lead(self) -> None:
        """Rounds without an end, or a few and then rest; ``rounds`` in all where that is set."""
        ahead: int = self.told["ahead"]
        rows: int = self.told["rows"]
        buffer = _native.RowsBuffer(ROW_BYTES * ROWS_MAX)
        begun: list[int] = []
        position = 0
        while self.rounds != self.told["rounds"]:
            while len(begun) < ahead:
                number = self.ring.send_plan(self._plan(position, rows))
                position += rows
                self._compute(number)
                self.ring.progress("sending", round=number)
                self.ring.send_rows(number, buffer)
                begun.append(number)
            self.ring.receive_rows(begun.pop(0), buffer)
            self._count()
            if self.phase == "idle" and self.rounds == 2:
                self._stay("idle")
        self.ring.close()

    def _follow(self) -> None:
        rows = _native.RowsBuffer(ROW_BYTES * ROWS_MAX)
        while (received := self.ring.receive_plan()) is not None:
            number, plan = received
            if plan.rows_total:
                self._receive(number, rows)
                self._compute(number)
                self.ring.progress("sending", round=number)
                self.ring.send_rows(number, rows)
                self._count()
            self.ring.progress("idle", round=number)
        self.ring.close()

    def _receive(self, number: int, rows: _native.RowsBuffer) -> None:
        if self.told["posted"]:
            self.ring.post_receive(rows).wait()
        else:
            self.ring.receive_rows(number, rows)

    def _compute(self, number: int) -> None:
        limit = self.told["busy"]
        self.ring.progress("computing", round=number, busy_limit_seconds=limit)
        ends_at = time.monotonic() + self.told["compute"]
        while self.is_wedged or time.monotonic() < ends_at:
            time.sleep(min(STEP_SECONDS, self.told["compute"]))

    def _stay(self, phase: str) -> None:
        """Do nothing but tell the ring so, until the ring ends; or nothing at all, once wedged."""
        while True:
            if not self.is_wedged:
                self.ring.progress(phase, busy_limit_seconds=self.told["busy"])
            time.sleep(STEP_SECONDS)

    def _count(self) -> None:
        self.rounds += 1
        if self.rounds == 2:
            say("running")

    def _plan(self, first: int, rows: int) -> _native.Plan:
        """Open the one stream, or go on with it."""
        return _native.Plan(
            ids=[1],
            ops=[2 if first else 1],
            firsts=[first],
            rows=[rows],
            accepted=[rows if first else 0],
            generations=[0],
            returns=[1],
        )

    def _wedge(self, *_: object) -> None:
        self.is_wedged = True


def main() -> int:
    """Run the rank that the argument describes."""
    stub = Stub(json.loads(sys.argv[1]))
    try:
        stub.run()
    except StagelinkError as error:
        say(
            "error",
            name=type(error).__name__,
            reason=error.reason,
            rank=error.rank,
            text=str(error),
        )
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
