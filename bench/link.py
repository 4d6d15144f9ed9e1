"""One hop of rows between two processes, from Python, beside a C ping-pong of the same strategy.

It compiles the C reference, runs both in turn on the same two cores, and prints ratios of
medians; it asserts nothing.

    python bench/link.py                    10, 20 and 50 KiB rows, spinning and sleeping
    python bench/link.py --json results.jsonl
    python bench/link.py --smoke            seconds: that everything still runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import machine
from stagelink._native import Description, Listener, Plan, Ring, RowsBuffer

HERE = Path(__file__).resolve().parent
BATCH = 40  # Plans sent ahead of their rounds, below the 64 that a follower queues.
FIELDS = [bytes([index]) * 32 for index in range(8)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to measure: row size, wait strategy, payload checksum, and how often."""

    size: int
    wait: str
    checksum: bool
    rounds: int


def compile_reference(folder: Path) -> Path:
    """The C ping-pong, compiled with what the machine calls a C compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("bench/link.py: no C compiler found; set CC")
    program = folder / "ping_pong"
    source = str(HERE / "ping_pong.c")
    subprocess.run([compiler, "-O2", "-Wall", "-o", str(program), source], check=True)
    return program


def cores() -> tuple[int, int]:
    """Two different cores for the two ends, or no pinning (-1) where there is only one."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (available[0], available[1]) if len(available) > 1 else (-1, -1)


def run_reference(program: Path, case: Case) -> list[float]:
    """Round trips of the C ping-pong, microseconds."""
    strategy = "spin" if case.wait == "spin" else "sleep"
    numbers = [case.size, case.rounds, int(case.checksum), *cores()]
    command = [str(program), strategy, *map(str, numbers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return [float(line) for line in done.stdout.split()]


def description(rank: int, case: Case) -> Description:
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


def join(rank: int, listener: Listener, lead: str | None, key_file: str, case: Case) -> Ring:
    """Rank ``rank`` of a ring of two, open for rounds."""
    ring = Ring.join(
        listener=listener,
        lead=lead,
        key_file=key_file,
        launch_id=None,
        fields=FIELDS,
        description=description(rank, case),
        wait=case.wait,
        checksum=case.checksum,
    )
    ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=30)
    return ring


def echo(lead: str, key_file: str, case: Case) -> None:
    """Rank 1: send back every row that comes, until rank 0 says bye."""
    pin(cores()[1])
    ring = join(1, Listener("127.0.0.1:0"), lead, key_file, case)
    rows = RowsBuffer(case.size)
    while (announced := ring.receive_plan()) is not None:
        ring.receive_rows(announced[0], rows)
        ring.send_rows(announced[0], rows)
    ring.close()


def pin(core: int) -> None:
    """Keep this process on one core; the reference is pinned the same way."""
    if core >= 0:
        os.sched_setaffinity(0, {core})


def plan(position: int) -> Plan:
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


def run_link(case: Case, folder: Path) -> list[float]:
    """Round trips of the link, microseconds: one ``exchange`` from call to return.

    Plans go ahead of a batch of rounds, so that only the rows are timed, as in the reference.
    """
    key_file = folder / f"key-{secrets.token_hex(4)}"
    descriptor = os.open(key_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(descriptor, secrets.token_bytes(32))
    os.close(descriptor)
    listener = Listener("127.0.0.1:0")
    command = [sys.executable, __file__, "--echo", listener.address, str(key_file)]
    command.append(json.dumps(dataclasses.asdict(case)))
    with subprocess.Popen(command) as peer:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        pin(cores()[0])
        ring = join(0, listener, None, str(key_file), case)
        out, back = RowsBuffer(case.size), RowsBuffer(case.size)
        np.frombuffer(out, np.uint8)[:] = 7
        times: list[float] = []
        for begin in range(0, case.rounds, BATCH):
            count = min(BATCH, case.rounds - begin)
            rounds = [ring.send_plan(plan(begin + index)) for index in range(count)]
            time.sleep(0.005)
            for number in rounds:
                before = time.perf_counter_ns()
                ring.exchange(number, out, back)
                times.append((time.perf_counter_ns() - before) / 1e3)
        ring.close()
        if allowed:
            os.sched_setaffinity(0, allowed)
        peer.wait(timeout=30)
    return times


def measure(case: Case, pairs: int, program: Path, folder: Path) -> dict[str, Any]:
    """Both, in turn, ``pairs`` times; medians of each run and the ratio of every pair."""
    link, reference = [], []
    for index in range(pairs):
        runs = [lambda: reference.append(statistics.median(run_reference(program, case)))]
        runs.append(lambda: link.append(statistics.median(run_link(case, folder))))
        for run in runs if index % 2 == 0 else reversed(runs):
            run()
    ratios = sorted(ours / theirs for ours, theirs in zip(link, reference, strict=True))
    return {
        "bench": "link",
        **dataclasses.asdict(case),
        "pairs": pairs,
        "link_us": round(statistics.median(link), 2),
        "reference_us": round(statistics.median(reference), 2),
        "ratio": round(statistics.median(link) / statistics.median(reference), 3),
        "ratio_low": round(ratios[0], 3),
        "ratio_high": round(ratios[-1], 3),
    }


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs a case (default 9)")
    parser.add_argument("--rounds", type=int, default=2000, help="round trips a run (default 2000)")
    parser.add_argument("--sizes", default="10,20,50", help="row sizes in KiB (default 10,20,50)")
    parser.add_argument("--json", metavar="FILE", help="append the results as JSON lines")
    parser.add_argument("--smoke", action="store_true", help="smallest size, one pair")
    parser.add_argument("--echo", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure every case, print the table, append JSON lines where asked."""
    arguments = parse_arguments()
    if arguments.echo:
        lead, key_file, case = arguments.echo
        echo(lead, key_file, Case(**json.loads(case)))
        return
    sizes = [10] if arguments.smoke else [int(size) for size in arguments.sizes.split(",")]
    pairs, rounds = (1, 80) if arguments.smoke else (arguments.pairs, arguments.rounds)
    here = machine.describe()
    print(json.dumps({"machine": here}))
    head = ("KiB", "wait", "checksum", "link us", "C us", "ratio", "spread")
    print("{:>5} {:>6} {:>9} {:>9} {:>9} {:>7}  {}".format(*head))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compile_reference(folder)
        for wait in ("spin", "block"):
            for checksum in (False, True):
                for size in sizes:
                    case = Case(size * 1024, wait, checksum, rounds)
                    result = measure(case, pairs, program, folder)
                    print(
                        f"{size:>5} {wait:>6} {checksum!s:>9} {result['link_us']:>9} "
                        f"{result['reference_us']:>9} {result['ratio']:>7}  "
                        f"{result['ratio_low']}..{result['ratio_high']}",
                        flush=True,
                    )
                    if arguments.json:
                        with Path(arguments.json).open("a", encoding="utf-8") as file:
                            file.write(json.dumps({**result, "machine": here}) + "\n")


if __name__ == "__main__":
    main()
