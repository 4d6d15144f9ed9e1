"""From a recording to what it shows by itself: repeats, compositions, greedy splits, states.

The reference's part is measured where the reference runs; nothing is judged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagelink.verify.evidence import Split, StatePair
from stagelink.verify.figures import Closeness, Disagreement, closeness, first_split
from stagelink.verify.scenario import (
    ACCEPTED,
    AFTER_ROWS,
    CHUNKED,
    DRAFTED,
    FORCED,
    GREEDY,
    KEPT,
    MIXED,
    PLAIN,
    REPEAT,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.verify.recording import Floats, Recording


NOTHING_KEPT, PART_KEPT = "cut back to nothing", "cut back to a part"
_COMPOSITIONS = {CHUNKED: "ragged chunks", MIXED: "beside other streams"}


def forced_closeness(found: Recording, reference: Mapping[int, Floats]) -> list[Closeness]:
    """Compare every forced prompt with the reference's logits, given by index of the round."""
    made = []
    for stream in found.script.streams(FORCED):
        indexes = rounds_of(found, stream)
        ours = [found.logits[found.returned(index)] for index in indexes if index in reference]
        theirs = [reference[index] for index in indexes if index in reference]
        made.append(closeness(ours, theirs))
    return made


def greedy_splits(found: Recording, reference: Mapping[int, Floats]) -> list[Split]:
    """Find where each greedy continuation leaves what the reference would have drawn."""
    made = []
    for stream in found.script.streams(GREEDY):
        indexes = [index for index in rounds_of(found, stream) if index in reference]
        theirs = np.concatenate([reference[index] for index in indexes])
        tokens = drawn(found, stream)
        _, prompt = found.script.roles[stream]
        made.append(Split(prompt, len(tokens), first_split(tokens, theirs)))
    return made


def stored_split(prompt: int, ours: list[int], stored: list[int], reference: Floats) -> Split:
    """Find the split where the reference followed tokens that may leave ours earlier.

    Its logits count up to and including the first token in which the two differ.
    """
    same = 0
    while same < min(len(ours), len(stored)) and ours[same] == stored[same]:
        same += 1
    count = min(same + 1, len(ours), len(reference))
    split: Disagreement | None = first_split(ours[:count], reference)
    return Split(prompt, count, split)


def drawn(found: Recording, stream: int) -> list[int]:
    """Return the tokens that a greedy stream drew, the one that was never sent included."""
    return [int(np.argmax(found.logits[place])) for place in found.places(stream)]


def repeats(found: Recording) -> list[Closeness]:
    """Compare every forced prompt with the same rounds run again."""
    pairs = zip(found.script.streams(FORCED), found.script.streams(REPEAT), strict=False)
    return [_pair(found, one, other) for one, other in pairs]


def compositions(found: Recording) -> dict[str, Closeness]:
    """Compare a stream in other chunks, and beside other streams, with itself alone."""
    forced = found.script.streams(FORCED)
    return {
        name: _pair(found, stream, forced[0])
        for role, name in _COMPOSITIONS.items()
        for stream in found.script.streams(role)
    }


def states(found: Recording, *, is_invariant: bool = False) -> dict[str, StatePair]:
    """Compare streams after a cut back with streams that never drafted.

    Where only a part is cut off, what is kept was computed in a window of another length: bytes are
    promised then by stages that are ``is_invariant`` alone.
    """
    made = {}
    for name, (one, other) in _state_pairs(found).items():
        ends = [(states.get(one), states.get(other)) for states in found.states]
        made[name] = StatePair(
            logits=_pair(found, one, other, last=AFTER_ROWS),
            is_exact=is_invariant or name == NOTHING_KEPT,
            unlike=tuple(rank for rank, (a, b) in enumerate(ends) if a and b and a != b),
            unknown=tuple(rank for rank, (a, b) in enumerate(ends) if not (a and b)),
        )
    return made


def begins(found: Recording) -> dict[str, int]:
    """Return the first rank whose rows differ, by the name of what was run twice."""
    forced = found.script.streams(FORCED)
    pairs = zip(forced, found.script.streams(REPEAT), strict=False)
    named: list[tuple[str, tuple[int, int], int | None]] = [
        (f"prompt {number}", pair, None) for number, pair in enumerate(pairs)
    ]
    for role, name in _COMPOSITIONS.items():
        named += [(name, (one, forced[0]), None) for one in found.script.streams(role)]
    named += [(name, pair, AFTER_ROWS) for name, pair in _state_pairs(found).items()]
    made = {}
    for name, (one, other), last in named:
        for rank in found.ranks:
            ours, theirs = found.stream_rows(rank, one), found.stream_rows(rank, other)
            positions = sorted(ours.keys() & theirs.keys())
            positions = positions if last is None else positions[-last:]
            if any(ours[at] != theirs[at] for at in positions):
                made[name] = rank
                break
    return made


def rounds_of(found: Recording, stream: int) -> list[int]:
    """Return the indexes of the rounds that carry a stream."""
    return [
        index
        for index, one in enumerate(found.script.rounds)
        if any(entry.id == stream for entry in one.entries)
    ]


def _state_pairs(found: Recording) -> dict[str, tuple[int, int]]:
    """Return the streams whose states are compared, by name."""
    cases = ((NOTHING_KEPT, DRAFTED, PLAIN), (PART_KEPT, ACCEPTED, KEPT))
    made = {}
    for name, role, beside in cases:
        one, other = found.script.streams(role), found.script.streams(beside)
        if one and other:
            made[name] = one[0], other[0]
    return made


def _pair(found: Recording, one: int, other: int, last: int | None = None) -> Closeness:
    """Compare two streams at the positions that both have, or at the last ones."""
    places = found.places(one), found.places(other)
    if last is not None:
        places = places[0][-last:], places[1][-last:]
    count = min(len(places[0]), len(places[1]))
    return closeness([found.logits[places[0][:count]]], [found.logits[places[1][:count]]])
