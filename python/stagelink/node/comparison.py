"""A ring's recording beside a reference: the same rounds again, boundary by boundary.

Every stage is also computed from the rows that the ring gave it, so that an error counts where it
is made and not where it arrives. Nothing is judged here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink.node.reference import convert_rows, pieces
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
    boundaries: list[Boundary] = []
    chained: Indexed | None = None
    for rank, (first, end) in enumerate(ranges):
        given = [chained]
        if rank > 0:
            given.append(_handed_on(found, reference, rank - 1, rounds))
        made = reference.through(pieces(first, end, layers), rounds, given)
        chained, own = made[0], made[-1]
        so_far, alone = (_drift(found, reference, rank, one) for one in (chained, own))
        boundaries.append(Boundary(rank, engines[rank], end, chained=so_far, own=alone))
    if chained is None:
        raise AssertionError("a ring has at least one stage")
    with reference.range(0, 1) as loaded:
        own_logits = loaded.head(rounds, _handed_on(found, reference, len(ranges) - 1, rounds))
        logits = own_logits if whole else loaded.head(rounds, chained)
    if whole:
        with reference.range(0, reference.layers) as loaded:
            logits = loaded.head(rounds, loaded.play(rounds, None))
    boundaries.append(_head(found, engines[0], reference.layers, logits, own_logits))
    return Replayed(logits, boundaries)


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
