"""What people see of a placement, and what a stage tells of its device."""

from __future__ import annotations

import dataclasses

from stagelink.engine import EngineDescription
from stagelink.fingerprint import FIELDS, Fingerprint
from stagelink.node.placement_id import placement_id
from stagelink.node.stage import device_text

FINGERPRINT = Fingerprint(**{name: bytes([at]) * 32 for at, name in enumerate(FIELDS)})
TOLD = EngineDescription("torch-cpu", "a cpu", "float32", "float32", 4, 1, 8, 1, False, 0)


def _id(*computes: tuple[object, ...]) -> str:
    return placement_id(FINGERPRINT, computes)


def test_a_rank_with_another_library_gives_another_id() -> None:
    first = _id(("numpy", "cpu"), ("torch-cpu", "cpu; torch 2.13.0"))
    assert first == _id(("numpy", "cpu"), ("torch-cpu", "cpu; torch 2.13.0"))
    assert first != _id(("numpy", "cpu"), ("torch-cpu", "cpu; torch 2.14.0"))


def test_the_same_engines_on_other_ranks_give_another_id() -> None:
    assert _id(("numpy", ""), ("mlx", "")) != _id(("mlx", ""), ("numpy", ""))


def test_another_kv_dtype_or_batch_invariance_gives_another_id() -> None:
    ids = {
        _id(("numpy", "cpu", kv_dtype, invariant))
        for kv_dtype in ("float32", "bfloat16")
        for invariant in (False, True)
    }
    assert len(ids) == 4


def test_another_fingerprint_gives_another_id() -> None:
    other = dataclasses.replace(FINGERPRINT, dtype=bytes(32))
    assert placement_id(other, [("numpy", "")]) != _id(("numpy", ""))


def test_a_device_is_told_with_its_libraries() -> None:
    told = dataclasses.replace(TOLD, libraries="torch 2.13.0+cpu, MKL 2024.2")
    assert device_text(told) == "a cpu; torch 2.13.0+cpu, MKL 2024.2"
    assert device_text(TOLD) == "a cpu"


def test_a_long_name_is_cut_and_the_libraries_stay() -> None:
    text = device_text(dataclasses.replace(TOLD, device="ü" * 300, libraries="torch 2.13.0"))
    assert len(text.encode()) <= 255
    assert text.endswith("; torch 2.13.0")


def test_what_a_device_is_called_is_one_printable_line() -> None:
    assert device_text(dataclasses.replace(TOLD, device="a\ncpu\x00")) == "acpu"
