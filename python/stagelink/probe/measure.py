"""The start of a link measures it: round trips, then bursts forward, back, and both at once.

`answer` is the other end. Only this process's own clock is read, from a call to a return.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from stagelink._native import RowsBuffer
from stagelink.probe import terms
from stagelink.probe.both_ways import send_and_receive
from stagelink.probe.word import Bandwidth, RoundTrip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink._native import Ring

ROUND_TRIPS_MIN, ROUND_TRIPS_MAX = 50, 200
ROUND_TRIP_SECONDS = 2.0
BURSTS = 5
# Bursts grow until one takes so long: shorter ones measure buffers, longer ones patience.
GROWN_SECONDS = 0.15
SIZES = (256, 1024, 4096, 16_384, terms.BURST_ROWS_MAX)
DIRECTION_SECONDS = 5.0
_MEGABYTE = 1e6


class Measurement:
    """The measuring end of an open ring of two; the order of the calls is that of the methods."""

    def __init__(self, ring: Ring) -> None:
        """Take the ring and make both buffers."""
        self._ring = ring
        self._plans = terms.Plans()
        self._out = RowsBuffer(terms.BURST_ROWS_MAX * terms.ROW_BYTES)
        self._in = RowsBuffer(terms.BURST_ROWS_MAX * terms.ROW_BYTES)

    def round_trips(self) -> RoundTrip:
        """Time single rows there and back; plans go ahead, so that only rows are timed."""
        taken: list[float] = []
        ends_at = time.monotonic() + ROUND_TRIP_SECONDS
        while len(taken) < ROUND_TRIPS_MIN or (
            len(taken) < ROUND_TRIPS_MAX and time.monotonic() < ends_at
        ):
            ahead = range(terms.ROUNDS_AHEAD)
            rounds = [self._plan(terms.ROUND_TRIP, 1) for _ in ahead]
            times = [self._exchange(number) for number in rounds]
            # The first waits for its plan too.
            taken += times[1:]
        micro = [seconds * 1e6 for seconds in taken]
        return RoundTrip(
            p50_us=round(terms.nearest_rank(micro, 0.5), 1),
            p99_us=round(terms.nearest_rank(micro, 0.99), 1),
            least_us=round(min(micro), 1),
            samples=len(micro),
            payload_bytes=terms.ROW_BYTES,
        )

    def forward(self) -> Bandwidth:
        """Time bursts to the other end, which answers each with an empty frame."""
        return self._bursts(self._forward)

    def back(self) -> int:
        """Have the other end time its bursts; return the size that it came to, in rows."""
        rows, _ = _grow(self._back)
        _repeat(lambda: self._back(rows))
        return rows

    def both(self, back_rows: int, forward: Bandwidth) -> Bandwidth:
        """Time bursts both ways at once; what is returned is the rate of each way."""
        rows = min(back_rows, forward.burst_bytes // terms.ROW_BYTES)
        return bandwidth(rows, _repeat(lambda: self._both(rows)))

    def _bursts(self, burst: Callable[[int], float]) -> Bandwidth:
        rows, _ = _grow(burst)
        return bandwidth(rows, _repeat(lambda: burst(rows)))

    def _forward(self, rows: int) -> float:
        number = self._plan(terms.FORWARD, rows)
        began = time.perf_counter()
        self._ring.send_rows(number, self._out)
        self._ring.receive_rows(number, self._in)
        return time.perf_counter() - began

    def _back(self, rows: int) -> float:
        """Send rows and get them back; the other end times the second half, to the next frame."""
        numbers = self._plan(terms.BACK, rows), self._plan(terms.ROUND_TRIP, 1)
        self._ring.send_rows(numbers[0], self._out)
        began = time.perf_counter()
        self._ring.receive_rows(numbers[0], self._in)
        seconds = time.perf_counter() - began
        self._exchange(numbers[1])
        return seconds

    def _both(self, rows: int) -> float:
        """A burst each way; its end is the answer to a frame that follows both."""
        numbers = self._plan(terms.BOTH, rows), self._plan(terms.ROUND_TRIP, 1)
        began = time.perf_counter()
        send_and_receive(self._ring, numbers[0], self._out, self._in)
        self._exchange(numbers[1])
        return time.perf_counter() - began

    def _exchange(self, number: int) -> float:
        began = time.perf_counter()
        self._ring.exchange(number, self._out, self._in)
        return time.perf_counter() - began

    def _plan(self, stream: int, rows: int) -> int:
        return self._ring.send_plan(self._plans.next(stream, rows))


def bandwidth(rows: int, seconds: Sequence[float]) -> Bandwidth:
    """Sum up bursts of ``rows`` rows each."""
    size = rows * terms.ROW_BYTES
    rates = [size / one / _MEGABYTE for one in seconds]
    return Bandwidth(
        mb_per_s=round(statistics.median(rates), 2),
        least_mb_per_s=round(min(rates), 2),
        most_mb_per_s=round(max(rates), 2),
        bursts=len(rates),
        burst_bytes=size,
    )


def _grow(burst: Callable[[int], float]) -> tuple[int, float]:
    """Send larger bursts until one takes long enough: they also wake the link up."""
    rows, seconds = SIZES[0], 0.0
    for rows in SIZES:
        seconds = burst(rows)
        if seconds > GROWN_SECONDS:
            break
    return rows, seconds


def _repeat(burst: Callable[[], float]) -> list[float]:
    """Repeat a burst, at least once, while there is time."""
    ends_at = time.monotonic() + DIRECTION_SECONDS
    taken = [burst()]
    while len(taken) < BURSTS and time.monotonic() < ends_at:
        taken.append(burst())
    return taken
