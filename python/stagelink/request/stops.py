"""When a stream ends: an end-of-text token, enough tokens, or no room left in the context.

It looks at ids and counts only; stop strings need text and are not done here.
"""

from __future__ import annotations

import dataclasses

STOP = "stop"
LENGTH = "length"
CANCELLED = "cancelled"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What ends a stream.

    Attributes:
        max_tokens: Most tokens to draw; ``None`` for as many as the context has room for.
        context: Most positions that a stage holds for one stream.
        eos_ids: Ids that end the text; the one drawn is kept in the ids, not in the text.
        ignore_eos: Draw on after an end-of-text id.
    """

    max_tokens: int | None
    context: int
    eos_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False


def finish_reason(limits: Limits, token_id: int, *, generated: int, position: int) -> str | None:
    """Return ``"stop"``, ``"length"``, or ``None`` where the stream goes on.

    Args:
        limits: The stream's limits.
        token_id: The token that was just drawn.
        generated: How many were drawn so far, this one included.
        position: Rows that the stages hold. The drawn token would be the row at ``position``.
    """
    if token_id in limits.eos_ids and not limits.ignore_eos:
        return STOP
    if limits.max_tokens is not None and generated >= limits.max_tokens:
        return LENGTH
    if position >= limits.context:
        return LENGTH
    return None
