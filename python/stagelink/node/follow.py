"""Every other rank's loop: plan in, rows in, run, rows out, until rank 0 says bye.

It calls the ring and the engine and nothing else; it knows no prompt, no token and no text. Rows of
a prompt's chunks land and leave in the background while it computes another chunk.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stagelink.engine import Beating, Preparing
from stagelink.node.boundary import IncomingRows, OutgoingRows
from stagelink.node.engine_errors import engine_errors
from stagelink.node.returned import gather_returned
from stagelink.node.times import StageTimes

if TYPE_CHECKING:
    import numpy as np

    from stagelink._native import Plan
    from stagelink.engine import StageEngine
    from stagelink.node.rows import BoundaryRows
    from stagelink.ring import Ring


def follow(
    engine: StageEngine, ring: Ring, rows: BoundaryRows, *, is_last: bool, busy_seconds: float
) -> StageTimes:
    """Serve rounds until rank 0's bye; return where the time went.

    Args:
        engine: Loaded and warm.
        ring: Open.
        rows: The stage's buffers.
        is_last: Its rows go to rank 0, and only those that the plan wants back.
        busy_seconds: How long one round may compute before the ring counts this stage as stuck.
    """
    times = StageTimes()
    incoming, outgoing = IncomingRows(ring, rows), OutgoingRows(ring, rows)
    number = 0

    def beat() -> None:
        ring.progress("computing", round=number, busy_limit_seconds=busy_seconds)

    if isinstance(engine, Beating):
        engine.heartbeat = beat
    prepare = engine.prepare if isinstance(engine, Preparing) else None
    while True:
        began = time.perf_counter()
        received = ring.receive_plan()
        if received is None:
            return times
        number, plan = received
        if prepare is not None:
            # Its rows are not here yet, and once they are everybody waits for this stage.
            beat()
            with engine_errors(f"preparing round {number}"):
                prepare(plan)
            ring.progress("idle", round=number)
        # A round without rows gets aligned memory too, of no bytes: what every engine can view.
        rows_in = incoming.receive(number, plan.rows_total) if plan.rows_total else rows.landing[:0]
        rows_out = outgoing.take(plan.rows_total)
        beat()
        arrived = time.perf_counter()
        with engine_errors(f"computing round {number}"):
            engine.run(plan, rows_in, rows_out)
        incoming.release()
        computed = time.perf_counter()
        ring.progress("sending", round=number)
        if plan.rows_total and is_last:
            ring.send_rows(number, _wanted_back(plan, rows_out, rows))
        elif plan.rows_returned:
            # The ring waits for this round: the shortest way is in this thread.
            ring.send_rows(number, rows_out)
        elif plan.rows_total:
            outgoing.post(number, rows_out)
        ring.progress("idle", round=number)
        if plan.rows_total:
            times.add(
                rows=plan.rows_total,
                compute_seconds=computed - arrived,
                wait_seconds=arrived - began + time.perf_counter() - computed,
            )


def _wanted_back(plan: Plan, rows_out: np.ndarray, rows: BoundaryRows) -> np.ndarray:
    """Return the rows that go to rank 0; without a copy where all of them do."""
    if plan.rows_returned == plan.rows_total:
        return rows_out
    gather_returned(
        plan,
        rows_out,
        rows.returned,
        planes=rows.planes,
        plane_row_bytes=rows.plane_row_bytes,
    )
    return rows.returned[: rows.size(plan.rows_returned)]
