"""What one stage held, did and waited for, as the plain values that tables and JSON show.

Figures that were not measured are ``None``, never 0.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagelink.node.times import StageTimes


@dataclasses.dataclass(slots=True)
class StageReport:
    """One stage of a finished run; bytes, milliseconds and counts.

    Attributes:
        rank: The stage's rank.
        host: Its host name.
        pid: Its process id.
        first: First layer held.
        end: One past the last layer held.
        engine: What computes, such as ``numpy``.
        device: On what, and with which libraries.
        threads: Threads that its numeric library was told to use, where it was told.
        tensor_bytes_held: Bytes of the own tensors in memory.
        tensor_bytes_read: Bytes read from the checkpoint for them.
        load_ms: Loading and warming.
        process_bytes_before: Memory of the whole process as loading began.
        process_bytes_loaded: The same once it was warm.
        rounds: Rounds with rows.
        rows: Rows computed.
        compute_ms: Inside the engine.
        wait_ms: Inside the ring's calls.
        wire_bytes_sent: Bytes written to links, headers included.
        wire_bytes_received: Bytes read from links, headers included.
    """

    rank: int
    host: str
    pid: int | None
    first: int
    end: int
    engine: str | None = None
    device: str | None = None
    threads: int | None = None
    tensor_bytes_held: int | None = None
    tensor_bytes_read: int | None = None
    load_ms: int | None = None
    process_bytes_before: int | None = None
    process_bytes_loaded: int | None = None
    rounds: int | None = None
    rows: int | None = None
    compute_ms: float | None = None
    wait_ms: float | None = None
    wire_bytes_sent: int | None = None
    wire_bytes_received: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return dataclasses.asdict(self)

    def measured(self, times: StageTimes, figures: Mapping[str, Any]) -> StageReport:
        """Return a copy with the figures of a stage's own loop and links."""
        return dataclasses.replace(
            self,
            rounds=times.rounds,
            rows=times.rows,
            compute_ms=round(times.compute_seconds * 1e3, 3),
            wait_ms=round(times.wait_seconds * 1e3, 3),
            wire_bytes_sent=_total(figures, "bytes_sent"),
            wire_bytes_received=_total(figures, "bytes_received"),
        )

    def loop_figures(self) -> list[int]:
        """Return what the message of docs/protocol.md 6.8 says, of a report that was measured."""
        return [
            self.rounds or 0,
            self.rows or 0,
            round((self.compute_ms or 0) * 1e3),
            round((self.wait_ms or 0) * 1e3),
            self.wire_bytes_sent or 0,
            self.wire_bytes_received or 0,
        ]

    def with_loop(self, figures: Sequence[int]) -> StageReport:
        """Return a copy with what another rank's `loop_figures` said."""
        rounds, rows, compute_us, wait_us, sent, received = figures
        return dataclasses.replace(
            self,
            rounds=rounds,
            rows=rows,
            compute_ms=compute_us / 1e3,
            wait_ms=wait_us / 1e3,
            wire_bytes_sent=sent,
            wire_bytes_received=received,
        )


def _total(figures: Mapping[str, Any], name: str) -> int:
    """Add up one counter over all links; ``figures`` nests them by link."""
    total, pending = 0, [figures]
    while pending:
        for key, value in pending.pop().items():
            if isinstance(value, dict):
                pending.append(value)
            elif isinstance(value, list):
                pending.extend(one for one in value if isinstance(one, dict))
            elif key == name:
                total += value
    return total
