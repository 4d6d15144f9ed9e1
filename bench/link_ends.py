"""Both ends of one measured link: a ring of two processes without a model, and its round trips.

It compares nothing; `link` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from busy import compute, pin
from reference import cores
from stagelink._native import Description, Listener, Plan, Ring, RowsBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCH = 40  # Plans sent ahead of their rounds, below the 64 that a follower queues.
COMPUTED = struct.Struct("<Q")  # Ahead of the rows that come back: how long that end computed, ns.
FIELDS = [bytes([index]) * 32 for index in range(8)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        size: Bytes of rows.
        wait: Wait strategy.
        checksum: Whether payloads carry one.
        rounds: Round trips of one run.
        compute_us: How long each end computes before it sends.
        suite: How the links are protected.
    """

    size: int
    wait: str
    checksum: bool
    rounds: int
    compute_us: int = 0
    suite: str = "psk"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        times_us: Per round trip, from call to return, what the other end's computing took by the
            wall taken off: a core's time is fixed, and interrupts during it are not the link's.
        trips_us: The same, nothing taken off.
        burnt: Processor time of the waits over their length, both ends' mean; 0 without computing.
        waits: What rank 0's end says of its last waits.
    """

    times_us: list[float]
    trips_us: list[float]
    burnt: float
    waits: dict[str, Any]


@contextlib.contextmanager
def linked(case: Case, folder: Path) -> Iterator[tuple[Ring, list[str]]]:
    """Rank 0's end of a ring of two, the other being a process that echoes.

    What that process said of itself is in the list once the block is left.
    """
    key_file = folder / f"key-{secrets.token_hex(4)}"
    descriptor = os.open(key_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(descriptor, secrets.token_bytes(32))
    os.close(descriptor)
    listener = Listener("127.0.0.1:0")
    command = [sys.executable, __file__, listener.address, str(key_file)]
    command.append(json.dumps(dataclasses.asdict(case)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        pin(cores()[0])
        said: list[str] = []
        try:
            ring = _join(0, listener, None, str(key_file), case)
            yield ring, said
            ring.close()
            said.append(peer.communicate(timeout=30)[0])
        finally:
            peer.kill()
            if allowed:
                os.sched_setaffinity(0, allowed)


def run_link(case: Case, folder: Path) -> Run:
    """Round trips of the link: one ``exchange`` from call to return.

    Plans go ahead of a batch of rounds, so that only the rows are timed, as in the reference.
    """
    with linked(case, folder) as (ring, said):
        times, trips, burnt = _lead(ring, case)
        waits = ring.figures()["previous_1"]["wait"]
    return Run(times, trips, (burnt + float(said[0])) / 2, waits)


def announce(ring: Ring, begin: int, count: int) -> list[int]:
    """Send the plans of ``count`` rounds, and let the other end hear them."""
    rounds = [ring.send_plan(_plan(begin + index)) for index in range(count)]
    time.sleep(0.005)
    return rounds


def _lead(ring: Ring, case: Case) -> tuple[list[float], list[float], float]:
    out, back = RowsBuffer(case.size), RowsBuffer(case.size)
    memoryview(out)[:] = bytes([7]) * case.size
    told = memoryview(back)[: COMPUTED.size]
    times: list[float] = []
    trips: list[float] = []
    waited = taken = 0
    for begin in range(0, case.rounds, BATCH):
        count = min(BATCH, case.rounds - begin)
        for number in announce(ring, begin, count):
            if not case.compute_us:
                before = time.perf_counter_ns()
                ring.exchange(number, out, back)
                times.append((time.perf_counter_ns() - before) / 1e3)
                continue
            compute(case.compute_us)
            spent, before = time.thread_time_ns(), time.perf_counter_ns()
            ring.exchange(number, out, back)
            passed = time.perf_counter_ns() - before
            trips.append(passed / 1e3)
            times.append((passed - COMPUTED.unpack(told)[0]) / 1e3)
            waited, taken = waited + passed, taken + time.thread_time_ns() - spent
    return times, trips or times, taken / waited if waited else 0.0


def echo(lead: str, key_file: str, case: Case) -> float:
    """Rank 1: send back every row that comes; the processor time of its waits over their length."""
    pin(cores()[1])
    ring = _join(1, Listener("127.0.0.1:0"), lead, key_file, case)
    rows = RowsBuffer(case.size)
    told = memoryview(rows)[: COMPUTED.size]
    waited = taken = 0
    while (announced := ring.receive_plan()) is not None:
        if not case.compute_us:
            ring.receive_rows(announced[0], rows)
            ring.send_rows(announced[0], rows)
            continue
        spent, before = time.thread_time_ns(), time.perf_counter_ns()
        ring.receive_rows(announced[0], rows)
        waited += time.perf_counter_ns() - before
        taken += time.thread_time_ns() - spent
        before = time.perf_counter_ns()
        compute(case.compute_us)
        told[:] = COMPUTED.pack(time.perf_counter_ns() - before)
        ring.send_rows(announced[0], rows)
    ring.close()
    return taken / waited if waited else 0.0


def _join(rank: int, listener: Listener, lead: str | None, key_file: str, case: Case) -> Ring:
    """Rank ``rank`` of a ring of two, open for rounds."""
    ring = Ring.join(
        listener=listener,
        lead=lead,
        key_file=key_file,
        launch_id=None,
        fields=FIELDS,
        description=_description(rank, case),
        wait=case.wait,
        checksum=case.checksum,
        suite=case.suite,
    )
    ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=30)
    return ring


def _description(rank: int, case: Case) -> Description:
    """A stage without a model: one float32 row of the wanted size."""
    return Description(
        rank=rank,
        world=2,
        first=rank,
        end=rank + 1,
        layers=2,
        width=case.size // 4,
        planes=1,
        row_dtype="float32",
        kv_dtype="float32",
        chunk_rows=1,
        rows_max=1,
        streams_max=1,
        context=1 << 24,
        states=1,
        kv_rows=1 << 24,
        weight_bytes=0,
        engine_version="bench",
        backend="none",
        device="none",
        host=f"end{rank}",
        rounds_in_flight_max=64,
    )


def _plan(position: int) -> Plan:
    """One row of one stream at ``position``; the first opens the stream."""
    return Plan(
        ids=[1],
        ops=[1 if position == 0 else 2],
        firsts=[position],
        rows=[1],
        accepted=[0 if position == 0 else 1],
        generations=[0],
        returns=[1],
    )


if __name__ == "__main__":
    lead_address, key_path, told = sys.argv[1:]
    print(echo(lead_address, key_path, Case(**json.loads(told))))
