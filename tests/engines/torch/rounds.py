"""Scripts of rounds in which several streams have one row each, and the prompts before them.

It runs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.engine import CONTINUE
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import in_chunks, step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagelink_conformance.scripts import Script

__all__ = ["prompts", "together"]


def prompts(ids: Mapping[int, Sequence[int]], rows: Mapping[int, int]) -> Script:
    """Open each stream with its first ids, a round each."""
    return [one for s, n in rows.items() for one in in_chunks(ids[s][:n], [n], s)]


def together(held: dict[int, int], ids: Mapping[int, Sequence[int]], rounds: int) -> Script:
    """Make rounds of one row of each stream; ``held`` are their positions, moved on."""
    script = []
    for _ in range(rounds):
        entries = [Entry(stream, CONTINUE, at, 1) for stream, at in sorted(held.items())]
        script.append(step(*entries, ids=[ids[stream][held[stream]] for stream in sorted(held)]))
        for stream in held:
            held[stream] += 1
    return script
