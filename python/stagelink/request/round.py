"""One round as the scheduler wants it: the columns of a plan, the token ids and who draws.

A value only; `stagelink.Plan` is made from it where it is sent.
"""

from __future__ import annotations

import dataclasses

# The numbers of docs/protocol.md 6.7. The seam has them too; it imports checkpoints, this does not.
OPEN, CONTINUE, CLOSE, CANCEL = 1, 2, 3, 4
RETURN_LAST, RETURN_NONE = 2, 3


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What a round does with one stream; the fields are those of docs/protocol.md 6.7."""

    id: int
    op: int
    first: int
    rows: int
    accepted: int
    generation: int
    returns: int


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A round's entries in ascending stream id, and the token ids of its rows in that order."""

    entries: tuple[Entry, ...]
    token_ids: tuple[int, ...]

    @property
    def rows_total(self) -> int:
        """Rows that go through the layers; 0 for a round that only closes streams."""
        return len(self.token_ids)

    @property
    def drawing(self) -> tuple[int, ...]:
        """Ids of the streams whose last row returns, in the order of the returned rows."""
        return tuple(entry.id for entry in self.entries if entry.returns == RETURN_LAST)
