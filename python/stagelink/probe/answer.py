"""The end of a link answers what the start measures, and times what only it can: its own bursts.

Which round measures what follows from the stream id of its plan (`terms`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stagelink._native import RowsBuffer
from stagelink.probe import terms
from stagelink.probe.both_ways import send_and_receive
from stagelink.probe.measure import bandwidth

if TYPE_CHECKING:
    from stagelink._native import Ring
    from stagelink.probe.word import Bandwidth


def answer(ring: Ring) -> Bandwidth | None:
    """Answer rounds until the start says bye; return what the own bursts came to."""
    rows_out = RowsBuffer(terms.BURST_ROWS_MAX * terms.ROW_BYTES)
    rows_in = RowsBuffer(terms.BURST_ROWS_MAX * terms.ROW_BYTES)
    taken: dict[int, list[float]] = {}
    burst_rows, began = 0, 0.0
    while (announced := ring.receive_plan()) is not None:
        number, plan = announced
        stream = plan.ids[0]
        if stream == terms.BOTH:
            send_and_receive(ring, number, rows_out, rows_in)
            continue
        ring.receive_rows(number, rows_in)
        if burst_rows:
            # This frame was sent when the whole burst had come.
            taken.setdefault(burst_rows, []).append(time.perf_counter() - began)
        burst_rows = plan.rows_total if stream == terms.BACK else 0
        began = time.perf_counter()
        ring.send_rows(number, rows_out)
    return _largest(taken)


def _largest(taken: dict[int, list[float]]) -> Bandwidth | None:
    """Sum up the bursts of the size that was settled on; the first one of it only grew to it."""
    if not taken:
        return None
    rows = max(taken)
    return bandwidth(rows, taken[rows][1:] or taken[rows])
