"""A stage's side of its two boundaries: rounds in and out while the engine computes another.

It decides which buffer a round uses and when that is free again; the link moves the bytes.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from stagelink._native import Posted
    from stagelink.node.rows import BoundaryRows
    from stagelink.ring import LeadRing, PostedRows, Ring


class IncomingRows:
    """The rounds that come from the previous rank; large ones land while another is computed."""

    def __init__(self, ring: Ring, rows: BoundaryRows) -> None:
        """Post both buffers, where a round can be large enough for the bulk lane."""
        self._ring = ring
        self._rows = rows
        self._posted: collections.deque[tuple[Posted, np.ndarray]] = collections.deque()
        self._in_use: np.ndarray | None = None
        if rows.is_bulk(rows.rows_max):
            for buffer in rows.incoming:
                self._posted.append((ring.post_receive(buffer), buffer))

    def receive(self, number: int, count: int) -> np.ndarray:
        """Wait for a round's ``count`` rows; uint8, to be given back with `release`."""
        if not self._rows.is_bulk(count):
            self._ring.receive_rows(number, self._rows.landing)
            return self._rows.landing[: self._rows.size(count)]
        posted, self._in_use = self._posted.popleft()
        came, _ = posted.wait()
        if came != number:
            raise AssertionError(f"rows of round {came} came where round {number} was due")
        return self._in_use[: self._rows.size(count)]

    def release(self) -> None:
        """The engine is done with the rows: their buffer may be filled again."""
        if self._in_use is not None:
            self._posted.append((self._ring.post_receive(self._in_use), self._in_use))
            self._in_use = None


class OutgoingRows:
    """The rounds that go to the next rank; one leaves while the engine writes the next."""

    def __init__(self, ring: LeadRing, rows: BoundaryRows) -> None:
        """Take turns with the two buffers of ``rows``."""
        self._ring = ring
        self._rows = rows
        self._leaving: list[PostedRows | None] = [None, None]
        self._turn = 0

    def take(self, count: int) -> np.ndarray:
        """Return memory for ``count`` rows, once what left from it is gone."""
        leaving = self._leaving[self._turn]
        if leaving is not None:
            leaving.wait()
            self._leaving[self._turn] = None
        return self._rows.outgoing[self._turn][: self._rows.size(count)]

    def post(self, number: int, rows: np.ndarray) -> None:
        """Let the rows that were taken leave in the background."""
        self._leaving[self._turn] = self._ring.post_send(number, rows)
        self._turn = 1 - self._turn
