"""Promises about bits: the same plans give the same bytes, wherever the layers are cut.

Every comparison here is of bytes, except where two compositions are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink.engine import CLOSE, CONTINUE, OPEN
from stagelink_conformance.plans import Entry
from stagelink_conformance.reference import REFERENCE_TYPES, reference_logits
from stagelink_conformance.scripts import chunked, open_streams, random_script, step
from stagelink_conformance.stages import assert_near, assert_same_bits, assert_same_bytes
from stagelink_conformance.whole import whole_logits

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagelink_conformance.stages import Stages

CHUNKS = (1, 7, 32, 64)
_REFERENCE = (
    "the reference shares no code: from row 0 on it is a formula or a weight, from a later row on "
    "a position, a mask or a state"
)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_split_at_every_cut_has_the_bits_of_the_whole(stages: Stages, chunk: int) -> None:
    # Single rows show in a few what they show in many, and cost most.
    rows = min(64, 16 * chunk)
    script = chunked(1, stages.ids(1, rows), chunk)
    script += chunked(1, stages.ids(2, 4), 1, at=rows)
    expected = stages.whole().play(script)
    for cut in stages.cuts():
        assert_same_bits(stages.split(cut).play(script), expected)


@pytest.mark.parametrize("seed", range(3))
def test_a_split_has_the_bits_of_the_whole_on_ragged_rounds(stages: Stages, seed: int) -> None:
    script = random_script(seed, stages.family.vocab, stages.settings, 24)
    expected = stages.whole().play(script)
    cuts = stages.cuts()
    for placement in {(cuts[0],), (cuts[0], cuts[-1]), tuple(cuts)}:
        assert_same_bits(stages.split(*sorted(set(placement))).play(script), expected)


def test_the_same_plans_give_the_same_bits_again(stages: Stages) -> None:
    script = random_script(11, stages.family.vocab, stages.settings, 16)
    assert_same_bits(stages.halves().play(script), stages.halves().play(script))


def test_earlier_streams_leave_no_trace(stages: Stages) -> None:
    ids = stages.ids(3, 40)
    used = stages.halves()
    earlier = random_script(5, stages.family.vocab, stages.settings, 16)
    used.play(earlier)
    used.play([step(Entry(stream, CLOSE), ids=[]) for stream in open_streams(earlier)])
    fresh = stages.halves()
    assert_same_bits(used.play(chunked(900, ids, 16)), fresh.play(chunked(900, ids, 16)))


def test_a_chunk_cut_equals_two_rounds(stages: Stages) -> None:
    ids = stages.ids(4, 30)
    whole = stages.whole()
    cut = whole.play([step(Entry(1, OPEN, 0, 30), ids=ids, cuts=[11])])[0]
    two = whole.play(
        [
            step(Entry(2, OPEN, 0, 11), ids=ids[:11]),
            step(Entry(2, CONTINUE, 11, 19), ids=ids[11:]),
        ]
    )
    parts = np.concatenate([two[0].rows, two[1].rows], axis=1)
    assert_same_bytes(cut.rows, parts, "the rows of one round that is cut and of two")


def test_chunkings_agree_closely(stages: Stages) -> None:
    ids = stages.ids(6, 64)
    whole = stages.whole()
    last = [whole.play(chunked(n + 1, ids, chunk))[-1] for n, chunk in enumerate((64, 63, 32, 1))]
    for one in last[1:]:
        assert_near(one.logits[-1], last[0].logits[-1], stages.tolerance)


def test_neighbours_change_a_stream_hardly_or_not(stages: Stages) -> None:
    ids, others = stages.ids(7, 24), stages.ids(8, 36)
    whole = stages.whole()
    alone = whole.play(chunked(9, ids, 24))[0]
    mixed = whole.play(
        [
            step(
                Entry(10, OPEN, 0, 20),
                Entry(11, OPEN, 0, 24),
                Entry(12, OPEN, 0, 16),
                ids=[*others[:20], *ids, *others[20:]],
            )
        ]
    )[0]
    assert_near(mixed.logits[20:44], alone.logits, stages.tolerance)


def test_the_head_gives_the_same_bits_for_the_same_rows(stages: Stages) -> None:
    whole = stages.whole()
    outcome = whole.play(chunked(1, stages.ids(9, 8), 8))[0]
    again = whole.head(outcome.rows)
    assert again.dtype == np.float32
    assert again.shape == (8, stages.family.vocab)
    assert_same_bytes(again, outcome.logits, "logits of the same rows")


def test_logits_are_close_to_those_of_an_independent_reference(stages: Stages) -> None:
    ids = stages.ids(10, 40)
    pipeline = stages.halves()
    outcomes = pipeline.play(chunked(1, ids[:33], 16) + chunked(1, ids[33:], 1, at=33))
    logits = np.concatenate([one.logits for one in outcomes])
    assert_near(logits, _reference(stages, ids), stages.reference_tolerance, _REFERENCE)


def _reference(stages: Stages, ids: list[int]) -> npt.NDArray[np.floating[Any]]:
    """Return logits that no engine computed."""
    if stages.family.model_type in REFERENCE_TYPES:
        return reference_logits(stages.checkpoint(), ids)
    pytest.importorskip("transformers", reason="the reference of this family")
    return whole_logits(stages.model, ids)
