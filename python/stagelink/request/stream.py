"""One sequence being generated: its ids, its position, its limits and how it ended.

It records; which round comes next is the scheduler's business, which token is the sampler's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink.request.chunks import cut_prompt
from stagelink.request.stops import finish_reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.request.chunks import Chunk
    from stagelink.request.sampling import Sampling
    from stagelink.request.stops import Limits


@dataclasses.dataclass(slots=True)
class Stream:
    """One sequence from its prompt to its outcome.

    Attributes:
        id: The stream's number on the ring; ascending, never used twice in one launch.
        prompt_ids: Token ids of the whole prompt.
        sampling: How its tokens are drawn.
        limits: When it ends.
        salt: Tells apart streams that share a seed; part of every draw.
        generation: Counter of the stream's state on the ring; a keep would advance it.
        position: Rows that every stage holds for this stream.
        rows_last: Rows of its last round; all are kept, as nothing is drafted.
        generated: Token ids drawn so far, an end-of-text id included.
        chunks: Prompt chunks that were not sent yet, first one first.
        outcome: ``"stop"``, ``"length"`` or ``"cancelled"``; ``None`` while it runs.
        is_open: The stages hold a slot for it.
    """

    id: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    salt: int = 0
    generation: int = 0
    position: int = 0
    rows_last: int = 0
    generated: list[int] = dataclasses.field(default_factory=list)
    chunks: list[Chunk] = dataclasses.field(default_factory=list)
    outcome: str | None = None
    is_open: bool = False

    @classmethod
    def begin(
        cls,
        stream_id: int,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        limits: Limits,
        *,
        chunk_rows: int,
        salt: int = 0,
    ) -> Stream:
        """Make a stream whose prompt is cut into chunks of at most ``chunk_rows`` rows."""
        return cls(
            id=stream_id,
            prompt_ids=tuple(prompt_ids),
            sampling=sampling,
            limits=limits,
            salt=salt,
            chunks=list(cut_prompt(len(prompt_ids), chunk_rows)),
        )

    @property
    def is_prompting(self) -> bool:
        """Part of the prompt was not sent yet."""
        return self.outcome is None and bool(self.chunks)

    @property
    def is_decoding(self) -> bool:
        """The last token drawn is the next row to send."""
        return self.outcome is None and not self.chunks and bool(self.generated)

    def accept(self, token_id: int) -> str | None:
        """Append a drawn token and return the outcome, or ``None`` where the stream goes on."""
        self.generated.append(token_id)
        self.outcome = finish_reason(
            self.limits, token_id, generated=len(self.generated), position=self.position
        )
        return self.outcome
