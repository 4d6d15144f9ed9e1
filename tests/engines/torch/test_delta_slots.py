"""States that cannot be cut, cut by running their inputs again: what reaches how far back.

The rule is a toy whose state tells every row that it saw; the real one is in test_gated_delta.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch

from stagelink_torch.delta_slots import SPAN_ROWS, DeltaShape, DeltaSlots, Inputs
from stagelink_torch.layer import Setup

SETUP = Setup(torch.device("cpu"), torch.float32, torch.float32, 512, 2, 128)
SHAPE = DeltaShape(heads=1, key_width=1, value_width=2, channels=1, taps=2)


class Tally:
    """Its state is a weighted sum of all rows and their count; the past is the last row."""

    def step(self, inputs: Inputs, past: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        for row in inputs.mixed[:, 0]:
            state[0, 0, 0] = state[0, 0, 0] * 1.5 + row + past[0, 0]
            state[0, 0, 1] += 1
            past[0, 0] = row
        return state.expand(inputs.rows, 1, 2).clone()


def make() -> DeltaSlots:
    return DeltaSlots(SHAPE, Tally(), SETUP)


def feed(slots: DeltaSlots, first: int, count: int, slot: int = 1, sign: int = 1) -> None:
    rows = torch.arange(first, first + count, dtype=torch.float32)[:, None] * sign + 1
    slots.advance(slot, first, Inputs(rows, torch.zeros(count, 1), torch.zeros(count, 1)))


def state(slots: DeltaSlots, position: int, slot: int = 1) -> list[torch.Tensor]:
    return [part.clone() for part in slots.save(slot, position)]


def plain(position: int) -> list[torch.Tensor]:
    slots = make()
    slots.clear(1)
    for first in range(position):
        feed(slots, first, 1)
    return state(slots, position)


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("pieces", [[8], [20], [3, 5, 1, 1, 6], [40, 8], [1] * 30, [16, 16, 16]])
def test_every_cut_that_can_be_made_equals_a_run_that_stopped_there(pieces: list[int]) -> None:
    held = sum(pieces)
    for position in range(held + 1):
        slots = make()
        slots.clear(1)
        at = 0
        for count in pieces:
            feed(slots, at, count)
            at += count
        if slots.can_cut(1, held, position):
            slots.cut(1, held, position)
            assert same(state(slots, position), plain(position))
        else:
            assert held - position > SPAN_ROWS


def test_the_last_piece_and_a_window_of_drafts_can_always_be_cut() -> None:
    slots = make()
    slots.clear(0)
    held = 0
    generator = torch.Generator().manual_seed(3)
    for _ in range(60):
        count = int(torch.randint(1, 30, (), generator=generator))
        feed(slots, held, count, slot=0)
        held += count
        assert all(slots.can_cut(0, held, held - back) for back in range(count + 1))
        assert all(slots.can_cut(0, held, max(held - back, 0)) for back in range(SPAN_ROWS + 1))


def test_a_stream_goes_on_after_a_cut_and_is_cut_again() -> None:
    slots = make()
    slots.clear(1)
    feed(slots, 0, 30)
    held = 30
    for kept in (5, 0, 8, 3):
        feed(slots, held, 8, sign=-1)
        slots.cut(1, held + 8, held)
        feed(slots, held, 8)
        slots.cut(1, held + 8, held + kept)
        held += kept
        assert same(state(slots, held), plain(held))


def test_a_cut_to_the_beginning_needs_no_inputs() -> None:
    slots = make()
    slots.clear(1)
    for first in range(0, 400, 40):
        feed(slots, first, 40)
    assert not slots.can_cut(1, 400, 40)
    assert slots.can_cut(1, 400, 0)
    slots.cut(1, 400, 0)
    assert same(state(slots, 0), plain(0))


def test_a_restored_state_goes_on_but_knows_no_rows_before_it() -> None:
    slots = make()
    slots.clear(1)
    feed(slots, 0, 20)
    slots.restore(0, 20, state(slots, 20))
    assert not slots.can_cut(0, 20, 19)
    feed(slots, 20, 4, slot=0)
    slots.cut(0, 24, 22)
    assert same(state(slots, 22, slot=0), plain(22))


def test_slots_do_not_see_each_other() -> None:
    slots = make()
    slots.clear(0)
    slots.clear(1)
    feed(slots, 0, 9, slot=0, sign=-1)
    feed(slots, 0, 9)
    slots.cut(0, 9, 2)
    assert same(state(slots, 9), plain(9))
