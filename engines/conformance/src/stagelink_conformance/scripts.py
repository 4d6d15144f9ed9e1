"""Sequences of rounds with their token ids: prompts in chunks, and seeded ragged mixes.

It runs nothing; a pipeline plays a script.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN
from stagelink_conformance.plans import Entry, RoundPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from stagelink.engine import EngineSettings


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One round: its plan and the id of each of its rows."""

    plan: RoundPlan
    token_ids: npt.NDArray[np.int64]


Script = list[Step]


def step(*entries: Entry, ids: Sequence[int], cuts: Sequence[int] = ()) -> Step:
    """Make one round of entries and the ids of their rows."""
    return Step(RoundPlan.of(*entries, cuts=cuts), np.array(ids, dtype=np.int64))


def chunked(stream: int, ids: Sequence[int], chunk: int, *, at: int = 0) -> Script:
    """Put ``ids`` into ``stream`` in rounds of ``chunk`` rows, from position ``at`` on."""
    script = []
    for begin in range(0, len(ids), chunk):
        part = ids[begin : begin + chunk]
        op = OPEN if at + begin == 0 else CONTINUE
        script.append(step(Entry(stream, op, at + begin, len(part)), ids=part))
    return script


def in_chunks(ids: Sequence[int], chunks: Sequence[int], stream: int = 1, at: int = 0) -> Script:
    """Put ``ids`` into ``stream`` in rounds of ``chunks`` rows, from position ``at`` on."""
    script: Script = []
    begin = 0
    for rows in chunks:
        script += chunked(stream, ids[begin : begin + rows], rows, at=at + begin)
        begin += rows
    return script


def open_streams(script: Script) -> list[int]:
    """Return the streams that a script leaves open."""
    streams: set[int] = set()
    for one in script:
        for stream, op in zip(one.plan.ids, one.plan.ops, strict=True):
            if op in (CLOSE, CANCEL):
                streams.discard(stream)
            else:
                streams.add(stream)
    return sorted(streams)


def random_ids(seed: int, count: int, vocab: int) -> list[int]:
    """Draw token ids."""
    return [int(one) for one in np.random.default_rng(seed).integers(0, vocab, count)]


def random_script(seed: int, vocab: int, settings: EngineSettings, rounds: int) -> Script:
    """Make rounds of several streams: prompts, decode rows, cuts back, closes, chunk cuts.

    Every plan keeps the rules of docs/protocol.md 6.7 and the settings' limits.
    """
    rng = np.random.default_rng(seed)
    positions: dict[int, int] = {}
    script: Script = []
    opened = 0
    while len(script) < rounds:
        entries: list[Entry] = []
        room = settings.rows_max
        for stream in sorted(positions):
            entry = _touch(rng, stream, positions, settings.context, room)
            if entry is not None:
                entries.append(entry)
                room -= entry.rows
        free = settings.streams_max - max(len(positions), len(entries))
        if free > 0 and room > 0 and (not entries or rng.random() < 0.6):
            opened += 1
            rows = int(rng.integers(1, min(room, settings.context // 3) + 1))
            positions[opened] = rows
            entries.append(Entry(opened, OPEN, 0, rows))
        total = sum(entry.rows for entry in entries)
        inner = max(total - 1, 0)
        cuts = rng.choice(inner, size=min(inner, int(rng.integers(0, 3))), replace=False) + 1
        ids = rng.integers(0, vocab, total).tolist()
        script.append(step(*entries, ids=ids, cuts=sorted(int(cut) for cut in cuts)))
    return script


def _touch(
    rng: np.random.Generator, stream: int, positions: dict[int, int], context: int, room: int
) -> Entry | None:
    """Decide what a round does with an open stream; ``None`` leaves it out."""
    held = positions[stream]
    choice = rng.random()
    if choice < 0.2 or room == 0:
        return None
    if choice < 0.3 or held + 8 > context:
        del positions[stream]
        return Entry(stream, CLOSE if choice < 0.25 else CANCEL)
    first = held - int(rng.integers(0, min(4, held))) if rng.random() < 0.4 else held
    rows = int(rng.choice([1, 1, 1, 2, 3, 8]))
    rows = min(rows, room)
    positions[stream] = first + rows
    return Entry(stream, CONTINUE, first, rows)
