"""The ring of one stage: rank 0's loop runs on it as on any other, and nothing leaves the process.

It checks no plan and keeps no time; it only hands the wanted rows back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.node.returned import gather_returned

if TYPE_CHECKING:
    import numpy as np

    from stagelink._native import Plan


class Kept:
    """Rows that went nowhere."""

    def __init__(self, number: int, rows: int) -> None:
        """Remember what `wait` returns."""
        self._gone = (number, rows)

    def wait(self, seconds: float | None = None) -> tuple[int, int]:  # noqa: ARG002 (the seam's)
        """Return at once."""
        return self._gone


class AloneRing:
    """The calls of `stagelink.ring.LeadRing` for a world of one."""

    rounds_in_flight_max = 1

    def __init__(self, *, planes: int, plane_row_bytes: int) -> None:
        """Take the boundary format of the engine."""
        self._planes = planes
        self._plane_row_bytes = plane_row_bytes
        self._plan: Plan | None = None
        self._rows: np.ndarray | None = None
        self._round = 0

    def send_plan(self, plan: Plan) -> int:
        """Keep the plan for the rows that follow; return the round's number."""
        self._plan = plan
        self._round += 1
        return self._round

    def send_rows(self, number: int, rows: np.ndarray, /) -> None:  # noqa: ARG002 (the seam's)
        """Keep a view of the rows until they are received."""
        self._rows = rows

    def post_send(self, number: int, rows: np.ndarray, /) -> Kept:
        """Keep a view of the rows until they are received."""
        self.send_rows(number, rows)
        return Kept(number, 0 if self._plan is None else self._plan.rows_total)

    def receive_rows(self, number: int, rows: np.ndarray, /) -> int:  # noqa: ARG002
        """Copy the rows that return; return how many."""
        if self._plan is None or self._rows is None:
            raise AssertionError("rows are received after a plan and rows were sent")
        gather_returned(
            self._plan,
            self._rows,
            rows,
            planes=self._planes,
            plane_row_bytes=self._plane_row_bytes,
        )
        self._rows = None
        return self._plan.rows_returned

    def exchange(self, number: int, rows_out: np.ndarray, rows_in: np.ndarray, /) -> int:
        """Send, then receive."""
        self.send_rows(number, rows_out)
        return self.receive_rows(number, rows_in)

    def progress(
        self,
        phase: str,
        *,
        round: int = 0,  # noqa: A002 (the link's own word)
        busy_limit_seconds: float = 0.0,
        done: int = 0,
    ) -> None:
        """Nobody listens."""

    def figures(self) -> dict[str, Any]:
        """No link, no bytes."""
        return {}
