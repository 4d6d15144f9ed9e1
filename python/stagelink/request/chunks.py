"""Cuts a prompt into the chunks that go round the ring one after the other.

It decides sizes only; when a chunk is sent is the scheduler's business.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Rows ``first .. first + rows`` of a prompt; ``is_last`` where its last row is wanted back."""

    first: int
    rows: int
    is_last: bool


def cut_prompt(rows_total: int, chunk_rows: int) -> tuple[Chunk, ...]:
    """Cut ``rows_total`` rows into chunks of ``chunk_rows``; the last one takes what is left.

    Only the sizes of the chunks, never the stages, decide the composition of a batch: the same
    prompt and the same ``chunk_rows`` give the same batches on one stage and on many.
    """
    if rows_total < 1 or chunk_rows < 1:
        raise ValueError(
            f"expected at least one row and one row a chunk, got {rows_total}, {chunk_rows}"
        )
    return tuple(
        Chunk(first, min(chunk_rows, rows_total - first), first + chunk_rows >= rows_total)
        for first in range(0, rows_total, chunk_rows)
    )
