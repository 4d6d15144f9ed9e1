"""Streams that stand beside a call that is refused, and the check that it did nothing to them.

It makes no bad call itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink.engine import EngineError
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.scripts import chunked
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.engine import PlanLike
    from stagelink_conformance.pipeline import Outcome, Pipeline
    from stagelink_conformance.stages import Stages

HELD = 10
OPENED = (1, 2, 3)
# A plan may ask for more rows than there is memory; its buffers are then of another size.
_BUFFER_ROWS_MAX = 4096


def busy(stages: Stages) -> Pipeline:
    """Make two stages with streams 1 to 3 open at position 10."""
    pipeline = stages.halves()
    for stream in OPENED:
        pipeline.play(chunked(stream, stages.ids(stream, HELD), HELD))
    return pipeline


def assert_unchanged(stages: Stages, pipeline: Pipeline) -> None:
    """Go on as if nothing had been refused, and compare with stages that refused nothing."""
    assert_same_bits(_go_on(stages, pipeline), _go_on(stages, busy(stages)))


def _go_on(stages: Stages, pipeline: Pipeline) -> list[Outcome]:
    """Show everything that a refused call could have changed: positions, KV and free slots."""
    ids = stages.ids(50, 6)
    script = chunked(1, ids, 1, at=HELD) + chunked(2, ids, 6, at=HELD) + chunked(3, ids, 2, at=HELD)
    script += chunked(9, ids, 6)
    return pipeline.play(script)


def assert_refused(reason: str | tuple[str, ...], call: Callable[[], object]) -> None:
    """Make a call that must be refused with this reason, or one of these."""
    with pytest.raises(EngineError) as caught:
        call()
    assert caught.value.reason in ((reason,) if isinstance(reason, str) else reason), caught.value


def assert_plan_refused(
    stages: Stages, pipeline: Pipeline, plan: PlanLike, reason: str | tuple[str, ...]
) -> None:
    """Let every stage refuse a plan with buffers that fit it."""
    rows = max(min(plan.rows_total, _BUFFER_ROWS_MAX), 0)
    size = rows * row_bytes(pipeline.engines[0].describe())
    ids = np.array(stages.ids(60, rows), dtype=np.int64)
    lead, *others = pipeline.engines
    assert_refused(reason, lambda: lead.run_first(plan, ids, rows_buffer(size)))
    for engine in others:
        rows_in, rows_out = rows_buffer(size), rows_buffer(size)
        assert_refused(reason, lambda: engine.run(plan, rows_in, rows_out))  # noqa: B023 - now
