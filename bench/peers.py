"""The round trip of one row through other transports, beside a C ping-pong of the same run.

It runs each peer in an environment of its own, on the same two cores; it asserts nothing.

    python bench/peers.py --install              make the environments of all peers (gloo is large)
    python bench/peers.py                        10, 20 and 50 KiB rows, every peer that is there
    python bench/peers.py --json results.jsonl --peers zmq,gloo
    python bench/peers.py --smoke                seconds: that everything still runs
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
from peer_environments import InstallError
from peer_series import PEERS, REFERENCE, Task, measure, result
from reference import compile_reference, cores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZE_KIB_MAX = 1024
REPEATS_MAX = 1000
ROUNDS_MAX = 100_000
LINK = ("stagelink", "spin")


def parse_names(text: str) -> list[str]:
    """Peers by name, in the order given, each once."""
    names = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in PEERS]:
        known = ", ".join(PEERS)
        raise argparse.ArgumentTypeError(f"expected some of {known}, got {unknown[0]!r}")
    return names


def whole(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers ``low..high``, both included."""

    def parse(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number {low}..{high}, got {text!r}")
        return value

    return parse


def parse_sizes(text: str) -> list[int]:
    """Row sizes in KiB."""
    return [whole(1, SIZE_KIB_MAX)(part) for part in text.split(",")]


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``install`` is the peers to make environments for, or None."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add, names = parser.add_argument, "NAME[,NAME]"
    add("--peers", type=parse_names, default=list(PEERS), metavar=names, help="default: all")
    add(
        "--install",
        type=parse_names,
        nargs="?",
        const=list(PEERS),
        metavar=names,
        help="make the environments afresh (default: of all peers) and stop",
    )
    add("--repeats", type=whole(1, REPEATS_MAX), default=9, help="repeats (default 9)")
    add("--rounds", type=whole(1, ROUNDS_MAX), default=1000, help="round trips a run (1000)")
    add("--sizes", type=parse_sizes, default=[10, 20, 50], help="row sizes, KiB (10,20,50)")
    add("--unpinned", action="store_true", help="leave both ends to the scheduler")
    add("--json", type=Path, metavar="FILE", help="append the results as JSON lines")
    add("--smoke", action="store_true", help="smallest size, one short repeat")
    arguments = parser.parse_args(words)
    if arguments.smoke:
        arguments.sizes, arguments.repeats, arguments.rounds = [10], 1, 50
    return arguments


def install(names: Sequence[str]) -> int:
    """Make the environments; the exit code."""
    for name in names:
        try:
            PEERS[name].environment.install()
        except InstallError as error:
            print(f"bench/peers.py: {error}", file=sys.stderr)
            return 1
        print(f"{name}: ready")
    return 0


def show(line: dict[str, Any]) -> str:
    """One row of the table on the terminal."""
    size = line["size"] // 1024 if "size" in line else ""
    start = f"{size:>5} {line['peer']:>10} {line.get('wait', ''):>6}"
    if "skipped" in line:
        return f"{start}  skipped: {line['skipped']}"
    figures = f"{line['us']:>9} {line['ratio_spin']:>10} {line['ratio_block']:>10}"
    figures += f" {line.get('ratio_link', ''):>12}"
    return f"{start} {figures}  {line['us_low']}..{line['us_high']}"


def run(arguments: argparse.Namespace, pinned: tuple[int, int]) -> list[dict[str, Any]]:
    """Every size in turn; each result is printed as it comes."""
    missing = {name: PEERS[name].missing() for name in arguments.peers}
    if arguments.unpinned and missing.get("stagelink", "") is None:
        missing["stagelink"] = "bench/link.py always pins its ends; leave --unpinned out"
    present = [name for name, reason in missing.items() if reason is None]
    lines: list[dict[str, Any]] = [
        {"bench": "peers", "peer": name, "skipped": reason}
        for name, reason in missing.items()
        if reason is not None
    ]
    for line in lines:
        print(show(line))
    with tempfile.TemporaryDirectory() as folder:
        program = compile_reference(Path(folder))
        for kib in arguments.sizes:
            task = Task(kib * 1024, arguments.repeats, arguments.rounds, pinned)
            series = measure(present, task, program)
            reference = {one.wait: one for one in series if one.peer == REFERENCE}
            link = next((it for it in series if (it.peer, it.wait) == LINK), None)
            for one in series:
                lines.append(result(one, reference, task, link))
                print(show(lines[-1]), flush=True)
    return lines


def main() -> int:
    """Measure, print the table, append JSON lines where asked; the exit code."""
    arguments = parse_arguments()
    if arguments.install:
        return install(arguments.install)
    pinned = (-1, -1) if arguments.unpinned else cores()
    here = machine.describe() | {"pinned": pinned != (-1, -1)}
    print(json.dumps({"machine": here}))
    head = ("KiB", "peer", "wait", "us", "to C spin", "to C block", "to link spin")
    print("{:>5} {:>10} {:>6} {:>9} {:>10} {:>10} {:>12}  spread, us".format(*head))
    try:
        lines = run(arguments, pinned)
    except FileNotFoundError as error:
        print(f"bench/peers.py: {error}", file=sys.stderr)
        return 1
    here["load_after"] = [round(value, 2) for value in os.getloadavg()]
    if arguments.json:
        with arguments.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line | {"machine": here}) + "\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
