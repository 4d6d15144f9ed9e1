"""One stream of a verification: what it is for, and the plan entries that carry it on.

It keeps the stream's position and generation as docs/protocol.md 6.7 counts them; it sends nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink.request.round import CLOSE, CONTINUE, OPEN, RETURN_NONE, Entry, Round

if TYPE_CHECKING:
    from collections.abc import Sequence

RETURN_ALL = 1


@dataclasses.dataclass(slots=True)
class Strand:
    """A stream, its purpose and how far it has come.

    Attributes:
        stream: Its id on the ring.
        role: What it is for, one of the roles in `scenario`.
        prompt: Index of the prompt that its tokens come from.
        position: Positions that the stages hold of it.
        generation: Its state's generation.
        rows_last: Rows of its last round.
        is_open: The stages have a slot for it.
    """

    stream: int
    role: str
    prompt: int
    position: int = 0
    generation: int = 0
    rows_last: int = 0
    is_open: bool = False

    def entry(self, rows: int, *, back: int = 0, returns: int = RETURN_ALL) -> Entry:
        """Return the entry of its next ``rows`` rows, after dropping the last ``back`` ones."""
        made = Entry(
            id=self.stream,
            op=CONTINUE if self.is_open else OPEN,
            first=self.position - back,
            rows=rows,
            accepted=self.rows_last - back,
            generation=self.generation,
            returns=returns,
        )
        self.is_open = True
        self.position += rows - back
        self.generation += back > 0
        self.rows_last = rows
        return made

    def round(self, ids: Sequence[int], *, back: int = 0, returns: int = RETURN_ALL) -> Round:
        """Return a round of this stream alone."""
        return Round((self.entry(len(ids), back=back, returns=returns),), tuple(ids))

    def close(self) -> Round:
        """Return the round that ends it."""
        self.is_open = False
        return Round(
            (Entry(self.stream, CLOSE, self.position, 0, 0, self.generation, RETURN_NONE),), ()
        )
