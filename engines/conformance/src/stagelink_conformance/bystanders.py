"""Streams that stand beside a call that is refused, and the check that it did nothing to them.

It makes no bad call itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import ConfigError, EngineError, Preparing
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
_ADVICE = (
    "refuse it before any state changes, by EngineChecks where it has the check "
    "(docs/engines.md, Codes of refusals; docs/protocol.md 6.7 and 9)"
)


def busy(stages: Stages) -> Pipeline:
    """Make two stages with streams 1 to 3 open at position 10."""
    pipeline = stages.halves()
    for stream in OPENED:
        pipeline.play(chunked(stream, stages.ids(stream, HELD), HELD))
    return pipeline


def assert_unchanged(stages: Stages, pipeline: Pipeline) -> None:
    """Go on as if nothing had been refused, and compare with stages that refused nothing."""
    expected = _go_on(stages, busy(stages))
    try:
        assert_same_bits(_go_on(stages, pipeline), expected)
    except (AssertionError, EngineError) as error:
        raise AssertionError(
            f"expected a refused call to change nothing, got other streams that no longer go on as "
            f"before ({error}); check the whole plan, token ids and buffers before any state"
        ) from error


def _go_on(stages: Stages, pipeline: Pipeline) -> list[Outcome]:
    """Show everything that a refused call could have changed: positions, KV and free slots."""
    ids = stages.ids(50, 6)
    script = chunked(1, ids, 1, at=HELD) + chunked(2, ids, 6, at=HELD) + chunked(3, ids, 2, at=HELD)
    script += chunked(9, ids, 6)
    return pipeline.play(script)


def assert_refused(
    reason: str | tuple[str, ...],
    call: Callable[[], object],
    kind: type[EngineError | ConfigError] = EngineError,
) -> None:
    """Make a call that must be refused by this kind of error with this reason, or one of these."""
    reasons = (reason,) if isinstance(reason, str) else reason
    wanted = f"expected {kind.__name__} with reason {' or '.join(map(repr, reasons))}"
    try:
        call()
    except kind as error:
        if error.reason in reasons:
            return
        raise AssertionError(f"{wanted}, got {error.reason!r}: {error}; {_ADVICE}") from error
    except Exception as error:
        raise AssertionError(f"{wanted}, got {error!r}; {_ADVICE}") from error
    raise AssertionError(f"{wanted}, got a call that was done; {_ADVICE}")


def assert_plan_refused(
    stages: Stages, pipeline: Pipeline, plan: PlanLike, reason: str | tuple[str, ...]
) -> None:
    """Let every stage refuse a plan with buffers that fit it."""
    rows = max(min(plan.rows_total, _BUFFER_ROWS_MAX), 0)
    size = rows * row_bytes(pipeline.engines[0].describe())
    ids = np.array(stages.ids(60, rows), dtype=np.int64)
    lead, *others = pipeline.engines
    try:
        assert_refused(reason, lambda: lead.run_first(plan, ids, rows_buffer(size)))
        for engine in others:
            if isinstance(engine, Preparing):
                assert_refused(reason, lambda: engine.prepare(plan))  # noqa: B023 - now
            rows_in, rows_out = rows_buffer(size), rows_buffer(size)
            assert_refused(reason, lambda: engine.run(plan, rows_in, rows_out))  # noqa: B023 - now
    except AssertionError as error:
        error.add_note(f"the plan: {plan}")
        raise
