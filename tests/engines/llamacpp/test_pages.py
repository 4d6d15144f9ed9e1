"""Memory in huge pages and mapped files whose pages are dropped: bytes stay, pages change.

No model is loaded here; how large a loaded stage is stands in test_memory.py.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from stagelink_llamacpp.pages import collapse_new, drop_pages, private_spans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the advice is Linux's")
_MIB = 1 << 20
_SMAPS = Path("/proc/self/smaps")


def _field(address: int, name: str) -> int:
    """Return a field, in bytes, of the mapping that holds an address."""
    inside = False
    for line in _SMAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            begin, end = (int(one, 16) for one in words[0].split("-"))
            inside = begin <= address < end
        elif inside and words[0] == f"{name}:":
            return int(words[1]) << 10
    raise AssertionError(f"no mapping has {name} of {address:#x}")


def _pattern(count: int) -> np.ndarray:
    return (np.arange(count, dtype=np.uint32) % 251).astype(np.uint8)


def _memory(count: int) -> tuple[mmap.mmap, np.ndarray]:
    """Return written memory in small pages."""
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array[:] = _pattern(count)
    return memory, array


def test_new_memory_is_put_into_huge_pages_and_keeps_its_bytes() -> None:
    expected = _pattern(16 * _MIB).tobytes()
    before = private_spans()
    _held, array = _memory(16 * _MIB)
    told: list[int] = []
    done = collapse_new(before, lambda: told.append(1))
    if not done:
        pytest.skip("this system gives no huge pages")
    assert done >= 12 * _MIB
    assert _field(array.ctypes.data + 8 * _MIB, "AnonHugePages") >= 8 * _MIB
    assert array.tobytes() == expected


def test_memory_that_was_there_before_is_left_alone() -> None:
    _held, array = _memory(16 * _MIB)
    assert collapse_new(private_spans(), lambda: None) == 0
    assert _field(array.ctypes.data, "AnonHugePages") == 0


def test_dropped_pages_of_a_mapped_file_leave_memory_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "weights of a model"
    expected = np.random.default_rng(1).integers(0, 256, 8 * _MIB, np.uint8).tobytes()
    path.write_bytes(expected)
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
    array = np.frombuffer(memory, np.uint8)
    assert array.tobytes() == expected
    assert _field(array.ctypes.data, "Rss") == 8 * _MIB
    drop_pages(path)
    assert _field(array.ctypes.data, "Rss") == 0
    assert array.tobytes() == expected
