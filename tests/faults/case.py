"""One row of the fault table: a fault in a phase, who must be named for it, why, and how soon.

It runs a case on a real ring and keeps what every rank said; the rows are in `table`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tests.faults.ring_of_stubs import StubRing

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

# A rank that sees the fault tells the others within this (docs/protocol.md 8: fate), and they are
# given as much again where several processes share a core.
TELL_SECONDS = 1.0
SILENT_INTERVALS = 3
INTERVAL_DEFAULT = 2.0
# How the stub engines say how long they may compute.
BUSY_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault and what must come of it.

    Attributes:
        fault: What is done, for a person.
        phase: `prompt`, `decode`, `idle`, or `load`: what the ring does when it is done.
        inject: Does it to a ring that runs; returns when, by the monotonic clock.
        named: The rank that every other rank must name.
        reason: The code that they must give.
        found_seconds: How long the fault may go unseen, from the keep-alive interval.
        mute: Ranks that cannot say anything.
        settings: Of `StubRing`.
        also: Further reasons that are as right, where two ranks see different sides of a fault.
    """

    fault: str
    phase: str
    inject: Callable[[StubRing], float]
    named: tuple[int, ...]
    reason: str
    found_seconds: Callable[[float], float] = lambda interval: 0.0 * interval
    mute: tuple[int, ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For a test's name."""
        return f"{self.fault}, {self.phase}".replace(" ", "-")

    def limit_seconds(self, interval: float) -> float:
        """When every rank that can speak must have named it."""
        return self.found_seconds(interval) + TELL_SECONDS


@dataclasses.dataclass(frozen=True)
class Told:
    """What one rank said, and how long after the fault."""

    rank: int | None
    reason: str
    text: str
    seconds: float


def run_case(
    case: Case,
    key_file: str,
    interval: float,
    make: Callable[..., AbstractContextManager[StubRing]] = StubRing,
) -> list[Told]:
    """Do it to a new ring; returns what every rank said that can speak, in rank order."""
    rounds = {"prompt": {"rows": 256, "compute": 0.02, "ahead": 2}}.get(case.phase, {})
    settings = {"interval": interval, "phase": case.phase, **rounds, **case.settings}
    with make(key_file, **settings) as ring:
        done = case.inject(ring.run())
        errors = ring.errors(case.mute)
    return [Told(one["rank"], one["reason"], one["text"], one["at"] - done) for one in errors]


def silence(interval: float) -> float:
    """Three silent intervals, and one between two looks."""
    return (SILENT_INTERVALS + 1) * interval


def silence_before_open(interval: float) -> float:
    """The same with the default interval, if that is longer."""
    return silence(max(interval, INTERVAL_DEFAULT))


def stall(interval: float) -> float:
    """The busy limit, from a keep-alive that told of it, which may be an interval away."""
    return BUSY_SECONDS + 2 * interval


def rows_overdue(interval: float) -> float:
    """What rows may take (docs/protocol.md 8), from a keep-alive that told of the wait."""
    return 5.3 + 2 * interval
