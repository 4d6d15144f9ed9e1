"""Engines of one placement, chained in one process by bytes: a ring without a link.

It copies every boundary through a buffer of its own, as a link does, and keeps nothing of a round.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import Preparing
from stagelink_conformance.plans import told

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from stagelink.engine import EngineDescription, PlanLike, StageEngine
    from stagelink_conformance.plans import RoundPlan
    from stagelink_conformance.scripts import Script

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_ALIGNMENT = 64


def rows_buffer(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return a uint8 buffer as links hand it out: 64-byte aligned, filled with a pattern."""
    block = np.full(nbytes + _ALIGNMENT, 0xA5, dtype=np.uint8)
    begin = -block.ctypes.data % _ALIGNMENT
    return block[begin : begin + nbytes]


def row_bytes(description: EngineDescription) -> int:
    """Return the bytes of one boundary row, all planes together."""
    return description.planes * description.width * _ITEM_BYTES[description.row_dtype]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What one round gave: the rows that came back, ``[planes, rows, bytes]``, and their logits."""

    rows: npt.NDArray[np.uint8]
    logits: npt.NDArray[np.float32]

    def same_bits(self, other: Outcome) -> bool:
        """Say whether rows and logits are equal byte for byte."""
        return (
            self.rows.tobytes() == other.rows.tobytes()
            and self.logits.tobytes() == other.logits.tobytes()
        )


class Pipeline:
    """Stages in order of rank; the first is the lead's.

    Attributes:
        engines: The stages.
        scribble: What every buffer is filled with as soon as a call has returned.
    """

    def __init__(self, engines: Sequence[StageEngine]) -> None:
        """Take loaded engines that follow each other without a gap."""
        self.scribble = 0xFF
        self.engines = tuple(engines)
        description = engines[0].describe()
        self._planes = description.planes
        self._row_bytes = row_bytes(description)

    def round(self, plan: RoundPlan, token_ids: npt.NDArray[np.int64]) -> Outcome:
        """Run one round through all stages and the head over the rows that return."""
        rows = self.send(plan, token_ids)
        planes = rows.reshape(self._planes, plan.rows_total, self._row_bytes // self._planes)
        returned = planes[:, plan.returned()]
        return Outcome(returned, self.head(returned))

    def head(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return the logits of rows ``[planes, rows, bytes]``."""
        own = rows_buffer(rows.size)
        own[...] = rows.reshape(-1)
        logits = self.engines[0].run_head(own, rows.shape[1])
        own[...] = self.scribble
        return logits

    def send(self, plan: PlanLike, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Run one round through all stages; return the last one's rows."""
        size = plan.rows_total * self._row_bytes
        out = rows_buffer(size)
        plan = told(plan, token_ids.tolist())
        self.engines[0].run_first(plan, token_ids, out)
        for engine in self.engines[1:]:
            if isinstance(engine, Preparing):
                engine.prepare(plan)
            taken, out = out, rows_buffer(size)
            engine.run(plan, taken, out)
            # A buffer goes back to its link at once, which fills it with something else.
            taken[...] = self.scribble
        return out

    def play(self, script: Script) -> list[Outcome]:
        """Run a script's rounds in order."""
        return [self.round(step.plan, step.token_ids) for step in script]

    def close(self) -> None:
        """Close every engine."""
        for engine in self.engines:
            engine.close()
