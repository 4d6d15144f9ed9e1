"""One end of a peer's round trip: its arguments, its core, its deadline and its loop.

It knows no transport; each peer program gives it a way to send and a way to receive.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BYTE = 7


@dataclasses.dataclass(frozen=True)
class End:
    """What one process of a pair was told; ``core`` -1 leaves it to the scheduler."""

    rank: int
    wait: str
    size: int
    rounds: int
    core: int
    ports: tuple[int, int]
    folder: Path
    seconds: int

    @property
    def payload(self) -> bytes:
        """The bytes that go round."""
        return bytes([BYTE]) * self.size


def begin() -> End:
    """This process's part, from its one argument; from here on it ends at the deadline."""
    told = json.loads(sys.argv[1])
    end = End(**{**told, "ports": tuple(told["ports"]), "folder": Path(told["folder"])})
    # The alarm's default action ends the process even inside a transport's own wait.
    signal.alarm(end.seconds)
    if end.core >= 0:
        os.sched_setaffinity(0, {end.core})
    return end


def go_round(
    end: End,
    version: str,
    send: Callable[[], object],
    receive: Callable[[], object],
    received: Callable[[], bytes],
) -> None:
    """Rank 0 times each send and receive and prints them; rank 1 sends back what came.

    ``received`` gives the last bytes that came, checked once after the timed part.
    """
    times = []
    for _ in range(end.rounds):
        if end.rank == 1:
            receive()
            send()
            continue
        before = time.perf_counter_ns()
        send()
        receive()
        times.append((time.perf_counter_ns() - before) / 1e3)
    if received() != end.payload:
        sys.exit(f"rank {end.rank}: expected {end.size} bytes of {BYTE}, other bytes came")
    if end.rank == 0:
        print(json.dumps({"version": version, "times_us": times}), flush=True)
