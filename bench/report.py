"""Result lines of bench/link.py and bench/peers.py as a Markdown table and an SVG bar chart.

It measures nothing; every figure it prints was read from a file, with the machine it came from.

    python bench/report.py results.jsonl
    python bench/report.py results.jsonl --svg chart.svg --against older.jsonl
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chart import draw
from figures import REFERENCE, Figure, FigureError, Results, read_results

if TYPE_CHECKING:
    from collections.abc import Sequence

TITLE = "One row there and back between two processes on loopback"
RUNS_LEAST = 3  # With fewer, lowest and highest are no spread.
HEAD = (
    "KiB",
    "contender",
    "round trip, µs",
    "lowest..highest",
    "times C",
    "lowest..highest",
    "times C, spin",
)
HEAD_AGAINST = ("before, µs", "change, µs", "change, times C", "beyond the spread")


def table(results: Results, before: Results | None = None) -> str:
    """A Markdown table, sorted by size and time; beside ``before`` where it is given.

    "times C" is to C of the same wait strategy, or spinning where the strategy is the peer's own.
    """
    floors = {one.key.size: one.us for one in results.figures.values() if one.key.is_floor}
    head = HEAD + (HEAD_AGAINST if before else ())
    rows = [head, tuple("---:" if name != "contender" else "---" for name in head)]
    for one in sorted(results.figures.values(), key=lambda one: (one.key.size, one.us)):
        row = (
            f"{one.key.size / 1024:g}",
            one.key.label,
            f"{one.us:.1f}",
            f"{one.us_low:.1f}..{one.us_high:.1f}",
            f"{one.ratio:.2f}",
            f"{one.ratio_low:.2f}..{one.ratio_high:.2f}",
            _to_floor(one, floors.get(one.key.size)),
        )
        rows.append(row + (compared(one, before.figures.get(one.key)) if before else ()))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _to_floor(one: Figure, floor: float | None) -> str:
    """Times C spinning without computing; nothing for a hop with computing between."""
    return "" if floor is None or one.key.compute_us else f"{one.us / floor:.2f}"


def compared(now: Figure, was: Figure | None) -> tuple[str, ...]:
    """The cells that set one figure beside its older self.

    The verdict is on the ratio to C, which a slower machine moves less than it moves the time.
    """
    if was is None:
        return ("not measured", "", "", "")
    is_reference = now.key.name == REFERENCE
    return (
        f"{was.us:.1f}",
        f"{now.us / was.us - 1:+.1%}",
        "" if is_reference else f"{now.ratio / was.ratio - 1:+.1%}",
        "" if is_reference else verdict(now, was),
    )


def verdict(now: Figure, was: Figure) -> str:
    """Faster or slower where the extremes of the two do not overlap; few runs say nothing."""
    if min(now.runs, was.runs) < RUNS_LEAST:
        return "too few runs"
    if now.ratio_low <= was.ratio_high and was.ratio_low <= now.ratio_high:
        return "no"
    return "slower" if now.ratio > was.ratio else "faster"


def described(machines: Sequence[dict[str, Any]]) -> list[str]:
    """One line a machine, with the loads and commits of its runs; what is not said is left out."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for machine in machines:
        groups.setdefault(_platform(machine), []).append(machine)
    return [_line(group) for group in groups.values()]


def _platform(machine: dict[str, Any]) -> tuple[Any, ...]:
    names = ("processor", "cores", "system", "congestion_control", "pinned")
    return tuple(machine.get(name) for name in names)


def _line(group: Sequence[dict[str, Any]]) -> str:
    first = group[0]
    told = [one.get(name) for one in group for name in ("load", "load_after")]
    loads = [load[0] for load in told if isinstance(load, list) and load]
    commits = dict.fromkeys(one["commit"] for one in group if one.get("commit"))
    said = (
        first.get("processor"),
        f"{first['cores']} cores" if first.get("cores") else None,
        f"load {'..'.join(map(str, sorted({min(loads), max(loads)})))}" if loads else None,
        first.get("system"),
        first.get("congestion_control"),
        "ends pinned" if first.get("pinned") else None,
        f"commit {', '.join(commits)}" if commits else None,
    )
    return ", ".join(str(part) for part in said if part)


def notes(results: Results, before: Results | None) -> list[str]:
    """What a reader must know beside the figures: machines, and what was not measured."""
    lines = [f"Measured on: {one}." for one in described(results.machines)]
    if before:
        lines += [f"Before: {one}." for one in described(before.machines)]
        if set(map(_platform, results.machines)) != set(map(_platform, before.machines)):
            lines.append("The two were measured on different machines.")
    lines += [f"Not measured: {name} ({reason})." for name, reason in results.skipped.items()]
    return lines


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, metavar="FILE", help="JSON lines to report")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the chart here")
    parser.add_argument("--against", type=Path, metavar="OLD", help="older JSON lines to compare")
    parser.add_argument("--title", default=TITLE, help="title of the chart")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Print the table, write the chart where asked; the exit code, 2 for a file not understood."""
    arguments = parse_arguments(words)
    try:
        results = read_results(arguments.results)
        before = read_results(arguments.against) if arguments.against else None
    except FigureError as error:
        print(f"bench/report.py: {error}", file=sys.stderr)
        return 2
    said = notes(results, before)
    print(table(results, before))
    print("\n".join(said))
    if arguments.svg:
        older = before.figures if before else {}
        plain = {key: one for key, one in results.figures.items() if not key.compute_us}
        picture = draw(plain, arguments.title, said, older)
        arguments.svg.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
