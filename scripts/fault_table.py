"""Runs every fault of the fault table on real rings and writes docs/faults.md from what they said.

    python scripts/fault_table.py [--interval SECONDS] [--runs N] [--print]

It decides nothing: the faults, and what must be named for them, are those of tests/faults/table.py.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Make = Callable[..., AbstractContextManager["StubRing"]]

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults.case import Case, Told, run_case  # noqa: E402 (the path comes first)
from tests.faults.ring_of_stubs import StubRing  # noqa: E402
from tests.faults.table import TABLE  # noqa: E402
from tests.hosts.namespaces import why_not  # noqa: E402
from tests.hosts.table import CABLES, across_hosts  # noqa: E402

PAGE = ROOT / "docs" / "faults.md"
HEAD = """\
# Faults

What a ring of three processes says of each fault, and how soon. Written by
`python scripts/fault_table.py`, never by hand; the same faults are tests (`tests/faults`), with
shorter timers. `seconds` is the longest time from the fault to the error on any rank that can still
speak (for a fault in a frame that is still to come: from the command that ordered it), over
{runs} run{s}; `limit` is what [protocol.md](protocol.md) 8 allows, and a second for the
ranks to tell each other.

Keep-alive interval {interval:g} s (the default is 2), three silent intervals; the engines compute
for 5 ms a decode round and 20 ms a prompt chunk of 256 rows of 20 KiB, and those that hang allowed
themselves {busy:g} s; on loopback, and where cables are pulled in network namespaces.

Run on {date}: {machine}.

| fault | while | named | reason | seconds | limit |
| --- | --- | --- | --- | ---: | ---: |
"""
TAIL = """
{cables}Not faults, and not declared dead (`tests/faults/test_alive.py`): a stage or a lead that
computes for a minute; a prompt that takes a minute on a link of 1 Mbit/s; links that are late by
more than an interval.

One such error, as every rank that survives prints it:

    {text}
"""


def main() -> int:
    """Run the table; 1 where a fault was not named as it must be."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        key_file = Path(folder) / "key"
        key_file.write_bytes(os.urandom(32))
        key_file.chmod(0o600)
        rows, wrong, text = [], 0, ""
        table: list[tuple[Case, Make]] = [(case, StubRing) for case in TABLE]
        no_hosts = why_not()
        if no_hosts is None:
            table += [(case, across_hosts) for case in CABLES]
        for number, (case, make) in enumerate(table, start=1):
            interval = case.settings.get("interval", arguments.interval)
            told = [
                one
                for _ in range(arguments.runs)
                for one in run_case(case, str(key_file), arguments.interval, make)
            ]
            is_right = _is_right(case, told, interval)
            wrong += not is_right
            rows.append(_row(case, told, interval, is_right=is_right))
            text = text or told[0].text
            sys.stderr.write(f"{number}/{len(table)} {rows[-1]}\n")
    page = (
        _head(arguments)
        + "\n".join(rows)
        + "\n"
        + TAIL.format(
            text=text, cables="" if no_hosts is None else f"Cables were not pulled: {no_hosts}.\n\n"
        )
    )
    if arguments.print:
        sys.stdout.write(page)
    else:
        PAGE.write_text(page, encoding="utf-8")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the fault table and write docs/faults.md.")
    parser.add_argument("--interval", type=float, default=2.0, help="keep-alive interval")
    parser.add_argument("--runs", type=int, default=1, help="times that each fault is done")
    parser.add_argument("--print", action="store_true", help="print the page instead")
    return parser.parse_args()


def _is_right(case: Case, told: list[Told], interval: float) -> bool:
    limit = case.limit_seconds(interval)
    return all(
        one.rank in case.named and one.reason in (case.reason, *case.also) and one.seconds < limit
        for one in told
    )


def _row(case: Case, told: list[Told], interval: float, *, is_right: bool) -> str:
    named = ", ".join(sorted({f"rank {one.rank}" for one in told}))
    reasons = ", ".join(sorted({f"`{one.reason}`" for one in told}))
    seconds = max(one.seconds for one in told)
    shown = f"{seconds:.2f}" if is_right else f"**{seconds:.2f}**"
    limit = case.limit_seconds(interval)
    return f"| {case.fault} | {case.phase} | {named} | {reasons} | {shown} | {limit:.1f} |"


def _head(arguments: argparse.Namespace) -> str:
    from tests.faults.case import BUSY_SECONDS  # noqa: PLC0415 (as above)

    load = os.getloadavg()[0]
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {load:.1f}"
    return HEAD.format(
        runs=arguments.runs,
        s="" if arguments.runs == 1 else "s",
        interval=arguments.interval,
        busy=BUSY_SECONDS,
        date=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        machine=machine,
    )


if __name__ == "__main__":
    sys.exit(main())
