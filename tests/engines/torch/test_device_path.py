"""The device's path on the CPU: slabs and lanes with their host twins, attention in its forms.

Recorded rounds are in test_recorded_rounds.py; what only a GPU can show is in tests/gpu.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from tests.engines.torch.late_lanes import LateLanes
from tests.engines.torch.on_device import as_on_a_device
from tests.engines.torch.rig import make_pipeline, token_ids

from stagelink.engine import CONTINUE, OPEN
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import step
from stagelink_conformance.stages import assert_same_bits
from stagelink_torch.attention import Attend, AttentionShape, _grouped, _packed
from stagelink_torch.lanes import HostLanes
from stagelink_torch.layer import Batch, Piece, Setup
from stagelink_torch.machine import settle_products
from stagelink_torch.transfer import SlabTransfer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETUP = Setup(torch.device("cpu"), torch.float32, torch.float32, 512, 4, 8)


@pytest.mark.parametrize("heads", [1, 6])
def test_a_group_of_heads_as_rows_attends_as_heads_do(heads: int) -> None:
    generator = torch.Generator().manual_seed(3)
    queries, keys, values = (
        torch.randn(shape, generator=generator)
        for shape in ((2, 5, 6, 16), (2, 3, 9, 16), (2, 3, 9, 16))
    )
    mask = torch.rand(2, heads, 5, 9, generator=generator) < 0.7
    mask[..., 0] = True
    shape = AttentionShape(6, 3, 16, 0.3)
    one, other = (
        form(queries, (keys, values), mask, shape, causal=False) for form in (_grouped, _packed)
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_sinks_in_a_bucket_attend_as_in_a_piece() -> None:
    generator = torch.Generator().manual_seed(4)
    shape = AttentionShape(4, 2, 16, 0.25, window=6)
    attend = Attend(shape, SETUP, torch.randn(4, generator=generator))
    slots = attend.make_slots()
    for slot, count in ((0, 20), (2, 9)):
        batch = Batch.of([Piece(slot, 0, 0, count)], SETUP)
        slots.put(*torch.randn(2, count, 2, 16, generator=generator), batch)
    queries = torch.randn(2, 4, 16, generator=generator)
    pieces = [Piece(0, 19, 0, 1), Piece(2, 8, 1, 2)]
    one = attend(queries, Batch.of(pieces, SETUP), slots)
    other = attend(queries, Batch.of(pieces, SETUP, bucket=32), slots)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("first", [0, 11])
def test_a_piece_in_parts_and_in_groups_attends_as_one(
    first: int, window: int, *, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(6)
    shape = AttentionShape(4, 2, 16, 0.25, window=window)
    logits = torch.randn(4, generator=generator) if sinks else None
    usual, packed = Attend(shape, SETUP, logits), Attend(shape, SETUP, logits)
    packed._packs_masked = packed._packs_all = True
    slots = usual.make_slots()
    batch = Batch.of([Piece(1, 0, 0, first + 8)], SETUP)
    slots.put(*torch.randn(2, first + 8, 2, 16, generator=generator), batch)
    queries = torch.randn(8, 4, 16, generator=generator)
    piece = Batch.of([Piece(1, first, 0, 8)], SETUP)
    expected = usual(queries, piece, slots)
    torch.testing.assert_close(packed(queries, piece, slots), expected, rtol=1e-5, atol=1e-6)
    # Three rows at a time.
    keys = usual._span(piece.pieces[0])
    most = 3 * 4 * (keys[1] - keys[0]) * (4 if sinks else 2)
    monkeypatch.setattr("stagelink_torch.attention._MASK_BYTES_MAX", most)
    assert packed._rows_at_once(keys[1] - keys[0]) == 3
    torch.testing.assert_close(packed(queries, piece, slots), expected, rtol=1e-5, atol=1e-6)


def test_rounds_of_several_batches_cross_lanes_that_are_late_with_the_same_bits(
    tiny: Callable[..., Path],
) -> None:
    ids = token_ids(count=120)
    script = [step(Entry(1, OPEN, 0, 90), ids=ids[:90], cuts=[11, 30, 33, 70])]
    entries = Entry(1, CONTINUE, 90, 20), Entry(2, OPEN, 0, 9)
    script.append(step(*entries, ids=ids[90:119], cuts=[3, 20, 27]))
    expected = make_pipeline(tiny("llama"), [3, 5], context=512).play(script)
    assert_same_bits(as_on_a_device(tiny("llama"), [3, 5]).play(script), expected)


@pytest.mark.parametrize("forgotten", ["compute_waits", "_land"])
def test_a_wait_that_is_forgotten_shows_on_lanes_that_are_late(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {
        "compute_waits": "tests.engines.torch.late_lanes.LateLanes.compute_waits",
        "_land": "stagelink_torch.transfer.SlabTransfer._land",
    }

    def crossed() -> list[float]:
        lanes = LateLanes()
        transfer, targets = SlabTransfer(SETUP, 3, lanes), [torch.zeros(2, 3) for _ in range(5)]
        taken = [transfer.take(torch.full((2, 3), float(at)), 2) for at in range(1, 6)]
        for rows, target in zip(taken, targets, strict=True):
            transfer.give(rows, target)
        transfer.finish()
        return [float(target.mean()) for target in targets]

    assert crossed() == [1, 2, 3, 4, 5]
    monkeypatch.setattr(places[forgotten], lambda *_: None)
    assert crossed() != [1, 2, 3, 4, 5]


def test_a_slab_is_written_again_only_after_the_device_has_read_it() -> None:
    lanes = HostLanes()
    transfer = SlabTransfer(SETUP, 3, lanes)
    for value in (1.0, 2.0, 3.0):
        rows = transfer.take(torch.full((2, 3), value), 4)
        assert torch.equal(rows, torch.tensor([[value] * 3] * 2 + [[0.0] * 3] * 2))
    record = lanes.record
    # The third batch uses the first slab again: the host waits for its copy, the copy for the use.
    assert record.index("host waits side 2") < record.index("side waits compute 3")
    assert record.index("compute waits side 2") < record.index("mark compute 3")


def test_products_on_a_device_keep_the_precision_of_their_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "restored afterwards")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    products = torch.backends.cuda.matmul
    names = (
        "allow_tf32",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    before = {name: getattr(products, name) for name in names}
    attention = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for name in names:
            setattr(products, name, True)
        settle_products()
        assert not any(getattr(products, name) for name in names)
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        for name, value in before.items():
            setattr(products, name, value)
        torch.backends.cuda.enable_cudnn_sdp(enabled=attention)


def test_the_first_rows_come_after_their_slab_was_made() -> None:
    lanes = HostLanes()
    SlabTransfer(SETUP, 3, lanes).take(torch.ones(2, 3), 4)
    assert lanes.record[:3] == ["mark compute 1", "side begins", "side waits compute 1"]


def test_rows_given_are_in_place_after_finish_and_copied_after_their_computing() -> None:
    lanes = HostLanes()
    transfer = SlabTransfer(SETUP, 3, lanes)
    targets = [torch.zeros(2, 3) for _ in range(3)]
    for value, target in enumerate(targets, start=1):
        transfer.give(torch.full((2, 3), float(value)), target)
    transfer.finish()
    assert [float(target.mean()) for target in targets] == [1.0, 2.0, 3.0]
    assert lanes.record[1:4] == ["mark compute 2", "side begins", "side waits compute 2"]
    assert [one for one in lanes.record if one.startswith("host waits")] == [
        "host waits side 3",
        "host waits side 5",
        "host waits side 7",
    ]


def test_padding_behind_a_batch_is_zeros_though_the_slab_held_rows() -> None:
    transfer = SlabTransfer(SETUP, 2, HostLanes())
    for _ in range(2):
        transfer.take(torch.ones(8, 2), 8)
    assert torch.equal(transfer.take(torch.ones(1, 2), 4).sum(dim=1), torch.tensor([2.0, 0, 0, 0]))
