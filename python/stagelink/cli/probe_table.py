"""The table of `stagelink probe`: one line a link, then its warnings and its errors.

It formats; what was not measured is a dash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEAD = (
    "link", "hosts", "p50 us", "p99 us", "-> MB/s", "<- MB/s", "both MB/s", "MSS", "congestion",
    "interface", "Mb/s", "Wi-Fi",
)  # fmt: skip
_TEXT_COLUMNS = 2


def probe_table(report: Mapping[str, Any]) -> str:
    """Return the table of all links, and below it what is wrong with them."""
    hosts = {stage["rank"]: stage["host"] for stage in report["stages"]}
    rows = [_HEAD, *(_row(link, hosts) for link in report["links"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "  ".join(
            text.ljust(width) if column < _TEXT_COLUMNS else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    for link in report["links"]:
        name = f"{link['from']} -> {link['to']}"
        lines += [f"warning: {name}: {warning['text']}" for warning in link["warnings"]]
        if link["error"] is not None:
            lines.append(f"failed: {name}: {link['error']['message']}")
    return "\n".join(lines)


def _row(link: Mapping[str, Any], hosts: Mapping[int, str]) -> tuple[str, ...]:
    times, ends = link["round_trip"] or {}, link["ends"]
    return (
        f"{link['from']} -> {link['to']}",
        f"{hosts[link['from']]} -> {hosts[link['to']]}",
        _number(times.get("p50_us")),
        _number(times.get("p99_us")),
        *(_rate(link[direction]) for direction in ("forward", "back", "both")),
        *(_two(ends, field) for field in ("mss", "congestion", "interface", "speed_mbit")),
        _two([end and {"wifi": _yes_no(end["wifi"])} for end in ends], "wifi"),
    )


def _two(ends: Sequence[Mapping[str, Any] | None], field: str) -> str:
    """One value where both ends say the same, else one a side."""
    texts = ["-" if end is None or end[field] is None else str(end[field]) for end in ends]
    return texts[0] if texts[0] == texts[1] else "/".join(texts)


def _yes_no(value: bool | None) -> str | None:
    return None if value is None else ("yes" if value else "no")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _rate(figures: Mapping[str, Any] | None) -> str:
    if figures is None:
        return "-"
    rate = figures["mb_per_s"]
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"
