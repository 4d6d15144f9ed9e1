"""Samples of bench/llamacpp.py as result lines, a Markdown table, and what splitting costs.

It measures nothing.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

WHOLE, RPC, OURS, SPINNING = "whole", "RPC", "ring of 2", "ring of 2, spin"
# Tokens a second of one run: of its median, and of its least disturbed part.
Rates = tuple[float, float]
Samples = dict[tuple[str, int, str], list[Rates]]
_MEASURES = (("lose", "ratio"), ("least disturbed", "ratio_best"))
HEAD = (
    "wire",
    "streams",
    "",
    "contender",
    "tokens/s",
    "lowest..highest",
    "of whole",
    "lost",
    "best runs",
)


def lines_of(
    wire: str,
    samples: Samples,
    shapes: Sequence[tuple[int, ...]],
    threads: int,
) -> list[dict[str, Any]]:
    """A line a contender, number of streams and kind.

    ``ratio`` is the median over the repeats of its rate to the whole model's of the same repeat;
    ``ratio_best`` compares what other work on the machine disturbed least: the best run of each, of
    steps the fastest tenth.
    """
    rows = {streams: (prompt, steps) for streams, prompt, steps in shapes}
    lines = []
    for (contender, streams, kind), runs in samples.items():
        floors = samples[WHOLE, streams, kind]
        rates, floor = ([one for one, _ in told] for told in (runs, floors))
        best, floor_best = (max(one for _, one in told) for told in (runs, floors))
        ratios = [rate / other for rate, other in zip(rates, floor, strict=True)]
        lines.append({
            "bench": "llamacpp",
            "wire": wire,
            "contender": contender,
            "streams": streams,
            "kind": kind,
            "prompt_rows": rows[streams][0],
            "steps": rows[streams][1],
            "threads": threads,
            "runs": len(rates),
            "tokens_s": round(statistics.median(rates), 2),
            "tokens_s_low": round(min(rates), 2),
            "tokens_s_high": round(max(rates), 2),
            "ratio": round(statistics.median(ratios), 4),
            "ratio_low": round(min(ratios), 4),
            "ratio_high": round(max(ratios), 4),
            "ratio_best": round(best / floor_best, 4),
        })  # fmt: skip
    return lines


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A Markdown table in the order of wires, streams and kinds."""
    rows = [HEAD, tuple("---" for _ in HEAD), *map(_row, _sorted(lines))]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def verdicts(lines: Sequence[dict[str, Any]]) -> list[str]:
    """For each wire, kind and number of streams: our loss of two stages beside RPC's."""
    found = {
        (one["wire"], one["kind"], one["streams"], one["contender"]): one
        for one in lines
        if "ratio" in one
    }
    said = []
    for (wire, kind, streams, contender), own in found.items():
        other = found.get((wire, kind, streams, RPC))
        if contender in {OURS, SPINNING} and other is not None:
            told = [_verdict(word, own[key], other[key]) for word, key in _MEASURES]
            said.append(f"{wire}, {kind}, streams {streams}, {contender}: {'; '.join(told)}")
    return said


def _verdict(word: str, own: float, other: float) -> str:
    ours, theirs = max(0.0, 1 - own), max(0.0, 1 - other)
    if not theirs:
        fits = "RPC loses nothing"
    else:
        fits = f"{ours / theirs:.2f} of RPC's" + (" (above half)" if ours >= theirs / 2 else "")
    return f"{word} {ours:.1%}, RPC {theirs:.1%}: {fits}"


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        one["wire"], str(one["streams"]), one["kind"], one["contender"],
        f"{one['tokens_s']:.1f}", f"{one['tokens_s_low']:.1f}..{one['tokens_s_high']:.1f}",
        f"{one['ratio']:.2f}", _lost(one["ratio"]), f"{one['ratio_best']:.2f}",
    )  # fmt: skip


def _sorted(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = [one for one in lines if "ratio" in one]
    wires = list(dict.fromkeys(one["wire"] for one in measured))
    return sorted(
        measured,
        key=lambda one: (wires.index(one["wire"]), one["streams"], one["kind"] == "decode"),
    )


def _lost(ratio: float) -> str:
    return f"{1 - ratio:.1%}" if ratio < 1 else f"gains {ratio - 1:.1%}"
