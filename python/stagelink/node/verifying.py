"""Rank 0's loop of a verification: the rounds of a scenario, their logits written down.

It judges nothing: what came back is compared elsewhere, once the ring has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagelink.verify.recording import Script
from stagelink.verify.scenario import Scenario, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink.node.run import RunningLead
    from stagelink.request.round import Round


def run_scenario(
    running: RunningLead, wanted: Wanted, logits: Path, progress: Callable[[int, int], None]
) -> Script:
    """Run every round on an open ring; return them as they were run.

    Args:
        running: Rank 0 of the ring.
        wanted: What to run.
        logits: New file for the float32 logits of all returned rows, in order.
        progress: Hears rounds done and expected.
    """
    stage = running.stage
    scenario = Scenario(
        wanted,
        vocab=stage.family.vocab,
        context=stage.settings.context,
        chunk_rows=stage.settings.chunk_rows,
        rows_max=stage.settings.rows_max,
    )
    done: list[Round] = []
    rounds = scenario.rounds()
    with logits.open("xb") as file:
        one = next(rounds, None)
        while one is not None:
            returned = running.lead.run_round(one)
            if returned is not None:
                returned = np.ascontiguousarray(returned, dtype="<f4")
                file.write(returned.data)
            done.append(one)
            progress(len(done), max(len(done), scenario.rounds_expected))
            try:
                one = rounds.send(returned)
            except StopIteration:
                one = None
    return Script.of(done, scenario.strands)
