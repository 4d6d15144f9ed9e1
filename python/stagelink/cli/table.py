"""The table at the end of a run: one line a stage, what it held, did and waited for.

It formats; a figure that was not measured is shown as a dash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MIB = 1 << 20
_HEAD = (
    "rank", "host", "pid", "layers", "held MiB", "read MiB", "rounds", "compute ms", "wait ms",
    "sent KiB", "received KiB",
)  # fmt: skip
_TEXT_COLUMNS = 2


def stage_table(stages: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all stages as lines of aligned columns."""
    rows = [_HEAD, *(_row(stage) for stage in stages)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < _TEXT_COLUMNS else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


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
        f"{stage['first']}-{stage['end']}",
        _bytes(stage["tensor_bytes_held"], _MIB),
        _bytes(stage["tensor_bytes_read"], _MIB),
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


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
