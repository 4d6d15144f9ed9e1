"""Holds what a stream keeps: cut back, over many rounds, saved and restored.

It knows no family: who calls says how stages are made, twice alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tests.engines.mlx.rig import in_chunks, token_ids

from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink_conformance.pipeline import Pipeline

__all__ = ["forgets_a_draft", "goes_back", "goes_on_restored", "keeps_a_part_of_a_verify"]

_NEAR = 2e-5


def forgets_a_draft(make: Callable[[], Pipeline], rows: int) -> None:
    """A cut to the beginning of a verify has the bits of a stream that never drafted."""
    cut, plain = make(), make()
    ids, drafts = token_ids(1, rows), token_ids(2, 8)
    cut.play([*in_chunks(ids, [rows]), *in_chunks(drafts, [8], at=rows)])
    plain.play(in_chunks(ids, [rows]))
    tail = in_chunks(token_ids(3, 4), [1, 3], at=rows)
    assert_same_bits(cut.play(tail), plain.play(tail))


def keeps_a_part_of_a_verify(make: Callable[[], Pipeline]) -> None:
    """Three of eight rows kept are near a run that stopped there, whose call was of three."""
    ids, drafts = token_ids(1, 40), token_ids(2, 8)
    cut, plain = make(), make()
    cut.play([*in_chunks(ids, [40]), *in_chunks(drafts, [8], at=40)])
    plain.play([*in_chunks(ids, [40]), *in_chunks(drafts[:3], [3], at=40)])
    for engine in cut.engines:
        engine.keep(1, 43)
    tail = in_chunks(token_ids(3, 4), [1, 3], at=43)
    for got, expected in zip(cut.play(tail), plain.play(tail), strict=True):
        assert np.abs(got.logits - expected.logits).max() <= _NEAR


def goes_back(make: Callable[[], Pipeline]) -> None:
    """A stream goes back over thirty rounds of a row each, with the bits of never having been."""
    ids = token_ids(1, 60)
    stages, plain = make(), make()
    stages.play(in_chunks(ids, [20, *[1] * 40]))
    plain.play(in_chunks(ids[:30], [20, *[1] * 10]))
    tail = in_chunks(token_ids(3, 4), [1, 3], at=30)
    assert_same_bits(stages.play(tail), plain.play(tail))


def goes_on_restored(
    make: Callable[[], Pipeline], chunks: Sequence[int] = (33, 7), *, drafts: int = 0
) -> None:
    """A stream saved and restored goes on with the same bits, also back over ``drafts`` rows."""
    stages, fresh = make(), make()
    rows = sum(chunks)
    stages.play(in_chunks(token_ids(1, rows), chunks))
    for engine, saved in zip(fresh.engines, stages.engines, strict=True):
        engine.restore(1, saved.save(1))
    if drafts:
        fresh.play(in_chunks(token_ids(2, drafts), [drafts], at=rows))
    tail = in_chunks(token_ids(3, 4), [1, 3], at=rows)
    assert_same_bits(fresh.play(tail), stages.play(tail))
