"""A round's plan as frozen columns, without a wire: what an engine is handed in a test.

It checks nothing: a test must be able to say what no lead would send.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink.engine import RETURN_ALL, RETURN_LAST, RETURN_NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.engine import PlanLike


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One stream of a plan; the fields are those of docs/protocol.md 6.7."""

    stream: int
    op: int
    first: int = 0
    rows: int = 0
    returns: int = RETURN_ALL
    accepted: int = 0
    generation: int = 0


def told(plan: PlanLike, token_ids: Sequence[int] | None = None) -> PlanLike:
    """Return a plan with the rows' token ids, as a ring sends it where layers read them.

    Without ``token_ids`` each row has one that means nothing. What is no ``RoundPlan`` stays.
    """
    if not isinstance(plan, RoundPlan):
        return plan
    ids = (1,) * plan.rows_total if token_ids is None else tuple(map(int, token_ids))
    return dataclasses.replace(plan, token_ids=ids)


@dataclasses.dataclass(frozen=True, slots=True)
class RoundPlan:
    """A plan as columns; it has the properties of ``stagelink.engine.PlanLike``."""

    ids: tuple[int, ...]
    ops: tuple[int, ...]
    firsts: tuple[int, ...]
    rows: tuple[int, ...]
    accepted: tuple[int, ...]
    generations: tuple[int, ...]
    returns: tuple[int, ...]
    cuts: tuple[int, ...]
    token_ids: tuple[int, ...] | None = None

    @classmethod
    def of(cls, *entries: Entry, cuts: Sequence[int] = ()) -> RoundPlan:
        """Make a plan of entries, in the order in which they are given."""
        return cls(
            ids=tuple(entry.stream for entry in entries),
            ops=tuple(entry.op for entry in entries),
            firsts=tuple(entry.first for entry in entries),
            rows=tuple(entry.rows for entry in entries),
            accepted=tuple(entry.accepted for entry in entries),
            generations=tuple(entry.generation for entry in entries),
            returns=tuple(entry.returns if entry.rows else RETURN_NONE for entry in entries),
            cuts=tuple(cuts),
        )

    @property
    def rows_total(self) -> int:
        """Rows of all entries."""
        return sum(self.rows)

    @property
    def rows_returned(self) -> int:
        """Rows that go back to the lead."""
        return len(self.returned())

    def returned(self) -> list[int]:
        """Return the offsets, in the round, of the rows that go back to the lead."""
        offsets: list[int] = []
        begin = 0
        for rows, returns in zip(self.rows, self.returns, strict=True):
            span = range(begin, begin + rows)
            if returns == RETURN_ALL:
                offsets += span
            elif returns == RETURN_LAST:
                offsets += span[-1:]
            begin += rows
        return offsets
