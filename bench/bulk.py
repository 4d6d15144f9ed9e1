"""Prompt chunks on the bulk lane beside plain C sockets, and how much of a wire computing hides.

It compiles the C reference, runs both in turn on the same two cores, and prints ratios of medians;
with --overlap it shapes a cable between two network namespaces, which needs root. No assertions.

    python bench/bulk.py                    16 and 40 MiB chunks, with and without checksums, sealed
    python bench/bulk.py --overlap          16 chunks over 1 Gbit/s, computing as long as they cross
    python bench/bulk.py --json results.jsonl
    python bench/bulk.py --smoke            seconds: that everything still runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
from bulk_ends import IN_FLIGHT, Chunks, Run, linked, send
from reference import compile_reference, cores

MIB = 1 << 20
RUN_SECONDS = 120
# Chunks of an overlap run, and how much longer than the wire each end computes one.
OVERLAP_CHUNKS = 16
COMPUTE_SHARE = 1.1


def run_link(case: Chunks, folder: Path) -> float:
    """Bytes a second of the bulk lane."""
    with linked(case, folder) as (ring, _):
        send(ring, dataclasses.replace(case, count=4))
    with linked(case, folder) as (ring, _):
        return case.size * case.count / send(ring, case).seconds


def run_reference(program: Path, case: Chunks) -> tuple[float, str]:
    """Bytes a second of C, and the congestion control that it ran with."""
    numbers = (case.size, case.count, int(case.checksum), *cores())
    done = subprocess.run(
        [str(program), *map(str, numbers)], capture_output=True, text=True,
        timeout=RUN_SECONDS, check=True,
    )  # fmt: skip
    control, seconds = done.stdout.split()
    return case.size * case.count / float(seconds), control


def compare(program: Path, case: Chunks, pairs: int, folder: Path) -> dict[str, Any]:
    """Interleaved runs of both."""
    reference = dataclasses.replace(case, checksum=case.checksum and case.suite == "psk")
    ratios, link, plain, control = [], [], [], ""
    for _ in range(pairs):
        rate, control = run_reference(program, reference)
        plain.append(rate)
        link.append(run_link(case, folder))
        ratios.append(link[-1] / plain[-1])
    return {
        "case": "bulk",
        "mib": case.size // MIB,
        "checksum": case.checksum,
        "suite": case.suite,
        "pairs": pairs,
        "link_gb_s": round(statistics.median(link) / 1e9, 3),
        "reference_gb_s": round(statistics.median(plain) / 1e9, 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(min(ratios), 3),
        "ratio_high": round(max(ratios), 3),
        "congestion_control": control,
    }


def overlap(size: int, rate: str, folder: Path) -> dict[str, Any]:
    """How much of the wire's time is hidden where each end computes longer than a chunk crosses."""
    root = str(Path(__file__).resolve().parent.parent)
    sys.path.insert(0, root)
    from tests.hosts.namespaces import Hosts  # noqa: PLC0415 (needs root, and only this does)

    with Hosts(2) as hosts:
        hosts.shape(rate, "8kb")
        shaped = {"within": hosts.within(1), "listen": (hosts.listen(0), hosts.listen(1))}
        wire = _in_namespace(hosts, Chunks(size, 8), folder, shaped)
        crossing = wire.seconds / 8
        compute_us = round(crossing * COMPUTE_SHARE * 1e6)
        case = Chunks(size, OVERLAP_CHUNKS, compute_us=compute_us)
        run = _in_namespace(hosts, case, folder, shaped)
    # Rank 1 can begin only when the first chunk has crossed: behind that one nothing can hide.
    perfect = without_wire(run) + crossing
    exposed = max(0.0, run.seconds - perfect)
    computed, worked = statistics.median(run.computed), statistics.median(run.worked)
    return {
        "case": "overlap",
        "mib": size / MIB,
        "rate": rate,
        "chunks": OVERLAP_CHUNKS,
        "crossing_ms": round(crossing * 1e3, 2),
        "compute_ms": round(compute_us / 1e3, 2),
        "seconds": round(run.seconds, 4),
        "perfect_seconds": round(perfect, 4),
        "hidden": round(1 - exposed / (crossing * OVERLAP_CHUNKS), 4),
        "compute_slowed": round(computed / (compute_us * 1e-6) - 1, 4),
        "calls_ms": round((worked - computed) * 1e3, 3),
    }


def without_wire(run: Run) -> float:
    """How long the same work, chunk by chunk, takes where rows cross in no time."""
    ends: list[float] = []
    own = 0.0
    for index, (first, second) in enumerate(zip(run.worked, run.other_worked, strict=True)):
        # Rank 0 waits for a round's return where as many are in flight as may be.
        returned = ends[index - IN_FLIGHT] if index >= IN_FLIGHT else 0.0
        own = max(own, returned) + first
        ends.append(max(own, ends[-1] if ends else 0.0) + second)
    return ends[-1]


def _in_namespace(hosts: Any, case: Chunks, folder: Path, shaped: dict[str, Any]) -> Run:
    """A run whose both ends live in the namespaces: this process moves into the first one."""
    command = [*hosts.within(0), sys.executable, __file__, "--end", str(folder)]
    told = {"case": dataclasses.asdict(case), **shaped}
    done = subprocess.run(
        command, input=json.dumps(told), capture_output=True, text=True,
        timeout=RUN_SECONDS, check=True,
    )  # fmt: skip
    return Run(**json.loads(done.stdout))


def end(folder: Path) -> None:
    """Rank 0 of a shaped run, in its namespace: the case on stdin, the run on stdout."""
    told = json.loads(sys.stdin.read())
    case = Chunks(**told["case"])
    shaped = {"within": told["within"], "listen": tuple(told["listen"])}
    with linked(case, folder, **shaped) as (ring, said):
        run = send(ring, case)
    run.other_worked = json.loads(said[0])
    print(json.dumps(dataclasses.asdict(run)))


def main() -> int:
    """Print a line a result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="interleaved runs a case (default 9)")
    parser.add_argument("--chunks", type=int, default=24, help="chunks of a run (default 24)")
    parser.add_argument("--overlap", action="store_true", help="hiding a shaped wire instead")
    parser.add_argument("--rate", default="1gbit", help="of the shaped wire (default 1gbit)")
    parser.add_argument("--json", metavar="FILE", help="append the results as JSON lines")
    parser.add_argument("--smoke", action="store_true", help="one size, one pair")
    parser.add_argument("--end", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.end:
        end(Path(arguments.end))
        return 0
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.overlap:
            sizes = [2 * MIB] if arguments.smoke else [2 * MIB, 16 * MIB]
            results = [overlap(size, arguments.rate, folder) for size in sizes]
        else:
            program = compile_reference(folder, "stream.c")
            sizes, pairs, chunks = [16, 40], arguments.pairs, arguments.chunks
            if arguments.smoke:
                sizes, pairs, chunks = [16], 1, 4
            kinds = [(False, "psk"), (True, "psk"), (True, "aes-128-gcm")]
            for size in sizes:
                for checksum, suite in kinds:
                    case = Chunks(size * MIB, chunks, checksum, suite)
                    results.append(compare(program, case, pairs, folder))
    about = machine.describe()
    for result in results:
        print(json.dumps(result))
    if arguments.json:
        with Path(arguments.json).open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(result | {"machine": about}) + "\n" for result in results)
    print(json.dumps(about), file=sys.stderr)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
