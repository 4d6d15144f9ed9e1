"""Scripts of rounds in which several streams have one row each, and the prompts before them.

It runs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.engines.torch.rig import token_ids

from stagelink.engine import CONTINUE
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import in_chunks, step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stagelink_conformance.scripts import Script

__all__ = ["KINDS", "prompts", "scripts_of_a_cut", "together"]

# One of each kind of layer: attention, experts, sinks, a recurrent state, latents.
KINDS = ("gemma3_text", "qwen3_moe", "gpt_oss", "qwen3_next", "deepseek_v3")


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


def scripts_of_a_cut(back: int) -> Iterator[tuple[Script, Script]]:
    """Yield what two runs play before and after: one is cut back by rounds, one stopped there.

    Three streams have rounds together; then one of them goes on from ``back`` rounds before the end
    of the longer run.
    """
    ids = {stream: token_ids(stream, 80) for stream in (1, 2, 3)}
    first, rounds = {1: 40, 2: 17, 3: 29}, 19
    for count in (rounds, rounds - back):
        before = prompts(ids, first) + together(dict(first), ids, count)
        yield before, together({2: first[2] + rounds - back}, ids, 4)
