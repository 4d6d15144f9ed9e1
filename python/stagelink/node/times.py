"""Where a stage's time went, round by round: computing, or waiting for others.

It adds up; the clock is read by the loops.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class StageTimes:
    """Sums over the rounds of one stage, in seconds."""

    rounds: int = 0
    rows: int = 0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0

    def add(self, *, rows: int, compute_seconds: float, wait_seconds: float) -> None:
        """Count one round."""
        self.rounds += 1
        self.rows += rows
        self.compute_seconds += compute_seconds
        self.wait_seconds += wait_seconds
