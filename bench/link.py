"""One hop of rows between two processes, from Python, beside a C ping-pong of the same strategy.

It compiles the C reference, runs all in turn on the same two cores, and prints the median of the
pairs' ratios; it asserts nothing.

    python bench/link.py                    10, 20 and 50 KiB rows, spinning and sleeping
    python bench/link.py --compute 1,3,10   milliseconds of computing on each end between two hops
    python bench/link.py --compute 3 --busy the same with every core wanted by another process
    python bench/link.py --json results.jsonl
    python bench/link.py --smoke            seconds: that everything still runs
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
from link_cases import measure_hop, measure_waits
from link_ends import Case
from reference import compile_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 15
# What the table shows of a result line.
HOP = ("link_us", "reference_us", "ratio", "ratio_low", "ratio_high", "two_ways_us")
HOP += ("two_ways_ratio", "sealed_us", "sealed_ratio")
WAIT = ("wait", "beyond_us", "beyond_us_low", "beyond_us_high", "reference_us", "ratio_spin")
WAIT += ("ratio_block", "burnt", "mean_us", "mean_ratio_block")


def whole_numbers(text: str) -> list[int]:
    """``10,20`` as numbers above 0."""
    words = text.split(",")
    if not all(word.isdecimal() and word.isascii() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text!r}")
    return [int(word) for word in words]


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="interleaved runs a case (default 9)")
    parser.add_argument("--rounds", type=int, help="round trips a run (default 2000, or a second)")
    parser.add_argument("--sizes", type=whole_numbers, help="row sizes, KiB (default 10,20,50)")
    parser.add_argument("--waits", default="spin,block", help="strategies of the plain hop")
    parser.add_argument("--compute", type=whole_numbers, help="compute between hops, milliseconds")
    parser.add_argument("--busy", action="store_true", help="a busy process on every core besides")
    parser.add_argument("--json", metavar="FILE", help="append the results as JSON lines")
    parser.add_argument("--smoke", action="store_true", help="smallest size, one pair")
    arguments = parser.parse_args(words)
    if arguments.busy and not arguments.compute:
        parser.error("expected --compute beside --busy: it is about computing between hops")
    return arguments


class Output:
    """The table on stdout and the JSON lines in a file."""

    def __init__(self, path: str | None) -> None:
        """Print what machine this is."""
        self._machine = machine.describe()
        self._path = path
        print(json.dumps({"machine": self._machine}))

    def row(self, cells: Sequence[object]) -> None:
        """One line of the table."""
        print("".join(f"{cell!s:>{WIDTH}}" for cell in cells), flush=True)

    def result(self, line: dict[str, Any]) -> None:
        """One line of the file, with the load as it is now."""
        if self._path is None:
            return
        here = {**self._machine, "load_after": [round(value, 2) for value in os.getloadavg()]}
        with Path(self._path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "machine": here}) + "\n")


def hops(arguments: argparse.Namespace, program: Path, folder: Path, output: Output) -> None:
    """The plain hop: every strategy, checksum and size."""
    sizes = arguments.sizes or [10, 20, 50]
    pairs, rounds = arguments.pairs, arguments.rounds or 2000
    if arguments.smoke:
        sizes, pairs, rounds = [10], 1, 80
    output.row(("KiB", "wait", "checksum", *HOP))
    for wait in arguments.waits.split(","):
        for checksum in (False, True):
            for size in sizes:
                case = Case(size * 1024, wait, checksum, rounds)
                line = measure_hop(case, pairs, program, folder)
                output.row((size, wait, checksum, *(line.get(name, "") for name in HOP)))
                output.result(line)


def waits(arguments: argparse.Namespace, program: Path, folder: Path, output: Output) -> None:
    """Hops with computing between them: every strategy beside the others."""
    size = (arguments.sizes or [20])[0] * 1024
    pairs = 1 if arguments.smoke else arguments.pairs
    output.row(("compute_ms", *WAIT))
    for milliseconds in arguments.compute:
        rounds = 80 if arguments.smoke else arguments.rounds or max(80, 1000 // milliseconds)
        case = Case(size, "", checksum=True, rounds=rounds, compute_us=milliseconds * 1000)
        for line in measure_waits(case, pairs, program, folder, is_busy=arguments.busy):
            output.row((milliseconds, *(line[name] for name in WAIT)))
            output.result(line)


def main() -> None:
    """Measure every case, print the table, append JSON lines where asked."""
    arguments = parse_arguments()
    output = Output(arguments.json)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            program = compile_reference(folder)
        except FileNotFoundError as error:
            sys.exit(f"bench/link.py: {error}")
        (waits if arguments.compute else hops)(arguments, program, folder, output)


if __name__ == "__main__":
    main()
