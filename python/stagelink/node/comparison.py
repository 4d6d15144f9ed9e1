"""A ring's recording beside a reference: the same rounds again, boundary by boundary.

Every stage is also computed from the rows that the ring gave it, so that an error counts where it
is made and not where it arrives. Nothing is judged here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink.node.reference import convert_rows, only_returned, pieces
from stagelink.verify.evidence import Boundary
from stagelink.verify.figures import drift
from stagelink.verify.scenario import REPLAYED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from stagelink.node.reference import Reference
    from stagelink.request.round import Round
    from stagelink.verify.figures import Drift
    from stagelink.verify.recording import Recording

    Indexed = dict[int, npt.NDArray[np.uint8]]
    Logits = dict[int, npt.NDArray[np.float32]]


@dataclasses.dataclass(frozen=True, slots=True)
class Replayed:
    """What the reference made of a recording's rounds.

    Attributes:
        logits: Of the rows that return, by index of the round.
        boundaries: In ring order, the head last.
    """

    logits: Logits
    boundaries: list[Boundary]


def replay(
    found: Recording, reference: Reference, ranges: Sequence[tuple[int, int]],
    engines: Sequence[str], *, whole: bool, layers: int | None,
) -> Replayed:  # fmt: skip
    """Compute a recording's forced and greedy rounds again.

    Args:
        found: What the ring made.
        reference: The engine to compute with.
        ranges: Layers of every rank; the reference is cut in the same places.
        engines: What computes on every rank, for people.
        whole: Take the logits from all layers in one engine, not from the chain of ranges.
        layers: Most layers in memory at once; ``None`` for a rank's.
    """
    rounds = {index: found.script.rounds[index] for index in found.script.only(REPLAYED)}
    boundaries, chained = _stages(found, reference, ranges, engines, rounds=rounds, layers=layers)
    handed = _handed_on(found, reference, len(boundaries) - 1, rounds)
    if not found.is_partial:
        handed = only_returned(rounds, handed, reference.form)
    with reference.range(*pieces(0, reference.layers, 1, reference.cuts)[0]) as loaded:
        own_logits = loaded.head(handed)
        logits = own_logits if whole else loaded.head(chained)
    if whole:
        with reference.range(0, reference.layers) as loaded:
            made = loaded.play(rounds, None)
            logits = loaded.head(only_returned(rounds, made, reference.form))
    boundaries.append(_head(found, engines[0], reference.layers, logits, own_logits))
    return Replayed(logits, boundaries)


def _stages(
    found: Recording, reference: Reference, ranges: Sequence[tuple[int, int]],
    engines: Sequence[str], *, rounds: Mapping[int, Round], layers: int | None,
) -> tuple[list[Boundary], Indexed]:  # fmt: skip
    """Return every stage's boundary, and the reference's own rows that return to rank 0."""
    boundaries: list[Boundary] = []
    chained: Indexed | None = None
    last = len(ranges) - 1
    # Where only rank 0 wrote its rows down, all other ranks are seen as one.
    groups = [(0, 0), (1, last)] if found.is_partial else [(rank, rank) for rank in range(last + 1)]
    for number, (rank, last_rank) in enumerate(groups):
        given = [chained]
        if number > 0:
            given.append(_handed_on(found, reference, number - 1, rounds))
        held = ranges[rank : last_rank + 1]
        parts = [part for first, end in held for part in pieces(first, end, layers, reference.cuts)]
        sets = reference.through(parts, rounds, given)
        chained = sets[0]
        if found.is_partial and number > 0:
            sets = [only_returned(rounds, one, reference.form) for one in sets]
        boundaries.append(
            Boundary(
                rank,
                ", ".join(dict.fromkeys(engines[rank : last_rank + 1])),
                held[-1][1],
                chained=_drift(found, reference, number, sets[0]),
                own=_drift(found, reference, number, sets[-1]),
                last_rank=last_rank,
            )
        )
    if chained is None:
        raise AssertionError("a ring has at least one stage")
    return boundaries, only_returned(rounds, chained, reference.form)


def _handed_on(
    found: Recording, reference: Reference, rank: int, rounds: Mapping[int, Round]
) -> Indexed:
    """Return the rows that a stage of the ring handed on, in the reference's format."""
    return {
        index: convert_rows(found.rows(rank, index), found.form, reference.form) for index in rounds
    }


def _drift(found: Recording, reference: Reference, rank: int, made: Indexed) -> Drift:
    """Compare a stage's rows with what the reference made, round by round."""
    indexes = [index for index, rows in made.items() if rows.size]
    return drift(
        [found.form.floats(found.rows(rank, index)) for index in indexes],
        [reference.form.floats(made[index]) for index in indexes],
    )


def _head(found: Recording, engine: str, layers: int, logits: Logits, own: Logits) -> Boundary:
    ours = [found.logits[found.returned(index)] for index in logits]
    return Boundary(
        0, engine, layers,
        chained=drift(ours, list(logits.values())),
        own=drift(ours, [own[index] for index in logits]),
        is_head=True,
    )  # fmt: skip
