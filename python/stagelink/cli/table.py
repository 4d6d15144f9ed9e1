"""The table at the end of a run: one line a stage, what it held, did and waited for.

It formats; a figure that was not measured is shown as a dash.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MIB = 1 << 20
_HEAD = (
    "rank", "host", "pid", "engine", "layers", "held MiB", "read MiB", "process MiB",
    "rounds", "compute ms", "wait ms", "sent KiB", "received KiB",
)  # fmt: skip
_TEXT_COLUMNS = frozenset(("rank", "host", "engine"))
# What goes first where a terminal is too narrow for all; the JSON has everything.
_SPARE = ("pid", "host", "rounds", "engine", "process MiB")
_GAP = "  "


def stage_table(stages: Sequence[Mapping[str, Any]], width: int | None = None) -> str:
    """Return the table of all stages as lines of aligned columns.

    Args:
        stages: What `StageReport.as_json` makes.
        width: Characters of a line; columns that can be spared are left out for it, no others.
    """
    rows = [_HEAD, *(_row(stage) for stage in stages)]
    columns = {name: [row[index] for row in rows] for index, name in enumerate(_HEAD)}
    wide = {name: max(map(len, texts)) for name, texts in columns.items()}
    for name in _SPARE:
        if width is not None and sum(wide.values()) + len(_GAP) * (len(wide) - 1) > width:
            del wide[name]
    return "\n".join(
        _GAP.join(
            columns[name][line].ljust(size)
            if name in _TEXT_COLUMNS
            else columns[name][line].rjust(size)
            for name, size in wide.items()
        ).rstrip()
        for line in range(len(rows))
    )


def terminal_width(stream: TextIO) -> int | None:
    """Return how many characters fit on a line of ``stream``; ``None`` where it is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def summary(result: Mapping[str, Any]) -> str:
    """Return one line on an answer: tokens, seconds, and the placement that they came from."""
    timings, placement = result["timings"], result["placement"]
    rate = timings["decode_tokens_per_second"]
    speed = "" if rate is None else f", then {rate:.1f} tokens/s"
    return (
        f"{len(result['prompt_token_ids'])} prompt tokens, {len(result['token_ids'])} generated "
        f"({result['finish_reason']}); "
        f"first token after {timings['first_token_ms']:.0f} ms{speed}; "
        f"placement {placement['id']}"
    )


def _row(stage: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(stage["rank"]),
        stage["host"] or "-",
        _count(stage["pid"]),
        stage["engine"] or "-",
        f"{stage['first']}-{stage['end']}",
        _bytes(stage["tensor_bytes_held"], _MIB),
        _bytes(stage["tensor_bytes_read"], _MIB),
        _growth(stage["process_bytes_before"], stage["process_bytes_loaded"]),
        _count(stage["rounds"]),
        _milliseconds(stage["compute_ms"]),
        _milliseconds(stage["wait_ms"]),
        _bytes(stage["wire_bytes_sent"], 1024),
        _bytes(stage["wire_bytes_received"], 1024),
    )


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _bytes(value: int | None, unit: int) -> str:
    return "-" if value is None else f"{value / unit:.1f}"


def _growth(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "-"
    return f"{before / _MIB:.0f}-{after / _MIB:.0f}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
