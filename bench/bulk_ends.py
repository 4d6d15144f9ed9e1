"""Both ends of the bulk lane: a ring of two processes without a model, and chunks one way.

It compares nothing; `bulk` does.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from busy import compute, pin
from reference import cores
from stagelink._native import Description, Listener, Plan, Ring, RowsBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagelink._native import Posted

ROW_BYTES = 16_384
FIELDS = [bytes([index]) * 32 for index in range(8)]
IN_FLIGHT = 4
JOIN_SECONDS = 20


@dataclasses.dataclass(frozen=True)
class Chunks:
    """One thing to measure.

    Attributes:
        size: Bytes of a chunk; a multiple of 16 KiB.
        count: Chunks of a run.
        checksum: Whether payloads carry one.
        suite: How the links are protected.
        compute_us: How long each end computes a chunk.
    """

    size: int
    count: int
    checksum: bool = True
    suite: str = "psk"
    compute_us: int = 0

    @property
    def rows(self) -> int:
        """Rows of a chunk."""
        return self.size // ROW_BYTES


@dataclasses.dataclass
class Run:
    """One run of chunks.

    Attributes:
        seconds: From the first plan to the last return.
        worked: Seconds that rank 0 did not wait, chunk by chunk: computing, checksums, calls.
        computed: Seconds of them that it computed.
        other_worked: As ``worked``, of rank 1.
    """

    seconds: float
    worked: list[float]
    computed: list[float]
    other_worked: list[float]


@contextlib.contextmanager
def linked(
    case: Chunks, folder: Path, *, within: Sequence[str] = (), listen: tuple[str, str] | None = None
) -> Iterator[tuple[Ring, list[str]]]:
    """Rank 0's end of a ring of two; rank 1 is a process that receives, and what it said.

    Args:
        case: What is measured.
        folder: For the key.
        within: What the other process's command begins with: another network namespace.
        listen: Both ends' listen addresses; loopback otherwise.
    """
    key_file = folder / f"key-{secrets.token_hex(4)}"
    descriptor = os.open(key_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(descriptor, secrets.token_bytes(32))
    os.close(descriptor)
    own, other = listen or ("127.0.0.1:0", "127.0.0.1:0")
    listener = Listener(own)
    told = json.dumps(dataclasses.asdict(case))
    command = [*within, sys.executable, __file__, listener.address, other, str(key_file), told]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        try:
            ring = join(0, None, listener, str(key_file), case)
            said: list[str] = []
            yield ring, said
            ring.close()
            said.append(peer.communicate(timeout=JOIN_SECONDS)[0])
        finally:
            if allowed:
                os.sched_setaffinity(0, allowed)
            peer.kill()


def join(rank: int, lead: str | None, listener: Listener, key_file: str, case: Chunks) -> Ring:
    """Either end, ready, on a core of its own; where it computes, without the link's threads."""
    if not case.compute_us:
        pin(cores()[rank])
    description = Description(
        rank=rank, world=2, first=rank, end=rank + 1, layers=2, width=ROW_BYTES // 4, planes=1,
        row_dtype="float32", kv_dtype="float32", chunk_rows=case.rows, rows_max=case.rows,
        streams_max=1, context=1 << 24, states=1, kv_rows=1 << 24, weight_bytes=0,
        engine_version="bench", backend="none", device="none", host=f"bench{rank}",
        rounds_in_flight_max=IN_FLIGHT,
    )  # fmt: skip
    settings: dict[str, Any] = {"checksum": case.checksum, "suite": case.suite, "wait": "block"}
    ring = Ring.join(
        listener=listener, lead=lead, key_file=key_file, launch_id=None, fields=FIELDS,
        description=description, join_seconds=JOIN_SECONDS, **settings,
    )  # fmt: skip
    ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=JOIN_SECONDS)
    pin(cores()[rank])
    return ring


def send(ring: Ring, case: Chunks) -> Run:
    """Rank 0: all chunks, each computed while those before it cross."""
    buffers = [np.full(case.size, 1 + index, np.uint8) for index in range(2)]
    leaving: list[Posted | None] = [None, None]
    due: collections.deque[int] = collections.deque()
    landing = np.zeros(ROW_BYTES, np.uint8)
    plans = [_plan(case, index) for index in range(case.count)]
    computed, worked = [], []
    began = time.perf_counter()
    for index, plan in enumerate(plans):
        while len(due) >= IN_FLIGHT:
            ring.receive_rows(due.popleft(), landing)
        posted = leaving[index % 2]
        if posted is not None:
            posted.wait()
        free = time.perf_counter()
        number = ring.send_plan(plan)
        computed.append(_compute(case))
        leaving[index % 2] = ring.post_send(number, buffers[index % 2])
        due.append(number)
        worked.append(time.perf_counter() - free)
    while due:
        ring.receive_rows(due.popleft(), landing)
    return Run(time.perf_counter() - began, worked, computed, [])


def _plan(case: Chunks, index: int) -> Plan:
    return Plan(
        ids=[1], ops=[2 if index else 1], firsts=[index * case.rows], rows=[case.rows],
        accepted=[case.rows if index else 0], generations=[0], returns=[3],
    )  # fmt: skip


def _compute(case: Chunks) -> float:
    began = time.perf_counter()
    if case.compute_us:
        compute(case.compute_us)
    return time.perf_counter() - began


def _receive(ring: Ring, case: Chunks) -> list[float]:
    """Rank 1: each chunk is computed while the next one lands; how long it worked on each."""
    buffers = [RowsBuffer(case.size) for _ in range(2)]
    posts = collections.deque((ring.post_receive(one), one) for one in buffers)
    worked = []
    while (received := ring.receive_plan()) is not None:
        posted, buffer = posts.popleft()
        posted.wait()
        came = time.perf_counter()
        _compute(case)
        posts.append((ring.post_receive(buffer), buffer))
        ring.send_rows(received[0], b"")
        worked.append(time.perf_counter() - came)
    return worked


def main() -> int:
    """The other process: ``bulk_ends.py LEAD LISTEN KEY_FILE CASE``."""
    lead, listen, key_file, told = sys.argv[1:]
    case = Chunks(**json.loads(told))
    ring = join(1, lead, Listener(listen), key_file, case)
    print(json.dumps(_receive(ring, case)))
    ring.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
