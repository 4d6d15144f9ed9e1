"""What the slots of the torch engine weigh, beside what the table of families says of it.

It measures no peak of a process and no weight.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

from tests.engines.torch.on_device import as_on_a_device
from tests.engines.torch.rig import CHUNKINGS, in_chunks, make_stage, token_ids

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import read_family
from stagelink_conformance.families import FAMILIES
from stagelink_conformance.pipeline import Pipeline
from stagelink_torch.delta_slots import DeltaSlots
from stagelink_torch.graphs import EagerRecorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink.engine import LayerState

_STREAMS, _CONTEXT, _ROWS = 4, 256, 128


@pytest.mark.parametrize("name", list(FAMILIES))
def test_no_layer_holds_more_than_the_table_says(tiny: Callable[..., Path], name: str) -> None:
    checkpoint = open_checkpoint(tiny(name))
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    engine = make_stage(tiny(name), 0, family.layers)
    Pipeline([engine]).play(in_chunks(token_ids(), CHUNKINGS["ragged"]))
    assert engine._loaded is not None
    for n, slots in enumerate(engine._loaded.model.slots):
        state = family.layer_state(n, 4)
        inputs = _kept_inputs(slots) if isinstance(slots, DeltaSlots) else 0
        said = state.bytes_held(_CONTEXT, _ROWS)
        arrays = dataclasses.replace(state, bytes_per_row=0).bytes_held(_CONTEXT, _ROWS)
        assert slots.nbytes <= arrays * _STREAMS, f"layer {n}"
        assert inputs <= said - arrays - _ring(state), f"layer {n}"


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe"])
def test_rounds_that_are_replayed_hold_no_more_than_the_table_says(
    tiny: Callable[..., Path], name: str
) -> None:
    checkpoint = open_checkpoint(tiny(name))
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    pipeline = as_on_a_device(tiny(name), recorder=EagerRecorder, streams_max=_STREAMS)
    pipeline.play(in_chunks(token_ids(count=83), [80, 1, 1, 1]))
    loaded = pipeline.engines[0]._loaded
    assert loaded is not None
    rings = 0
    for n, slots in enumerate(loaded.model.slots):
        ring = slots._ring if isinstance(slots, DeltaSlots) else None
        held = 0 if ring is None else ring.mixed.nbytes + ring.decay.nbytes + ring.rate.nbytes
        state = family.layer_state(n, 4)
        assert held <= _ring(state) * _STREAMS, f"layer {n}"
        rings += held > 0
    assert rings == family.layer_kinds.count("linear")


def _ring(state: LayerState) -> int:
    """Return what of ``bytes_held`` is the ring of replayed rounds: two spans of 16 rows."""
    return 32 * state.bytes_per_row


def _kept_inputs(slots: DeltaSlots) -> int:
    """Return the bytes of the rows that a cut would run again."""
    pieces = [piece for spans in slots._spans for span in spans for piece in span.pieces]
    tensors = [one for piece in pieces for one in (piece.mixed, piece.decay, piece.rate)]
    # A view keeps all of what it is a part of.
    whole = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(one.nbytes() for one in whole.values())
