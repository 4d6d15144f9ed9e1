"""Memory in huge pages and mapped files whose pages are dropped: bytes stay, pages change.

No model is loaded here; how large a loaded stage is stands in test_memory.py.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stagelink_llamacpp import pages
from stagelink_llamacpp.pages import Collapsing, Dropping, private_spans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the advice is Linux's")
_MIB = 1 << 20
_MAP_FIXED = 0x10
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
    collapsing = Collapsing(before)
    collapsing.wait()
    if not collapsing.collapsed_bytes:
        pytest.skip("this system gives no huge pages")
    assert collapsing.collapsed_bytes >= 12 * _MIB
    assert _field(array.ctypes.data + 8 * _MIB, "AnonHugePages") >= 8 * _MIB
    assert array.tobytes() == expected


def test_memory_that_was_there_before_is_left_alone() -> None:
    _held, array = _memory(16 * _MIB)
    collapsing = Collapsing(private_spans())
    collapsing.wait()
    assert collapsing.collapsed_bytes == 0
    assert _field(array.ctypes.data, "AnonHugePages") == 0


def test_what_is_stopped_leaves_the_rest_in_small_pages_and_touches_nothing_afterwards() -> None:
    before = private_spans()
    _held, array = _memory(256 * _MIB)
    collapsing = Collapsing(before)
    collapsing.stop()
    done = collapsing.collapsed_bytes
    assert done < 200 * _MIB
    assert _field(array.ctypes.data, "AnonHugePages") <= done + 2 * _MIB
    assert array.tobytes() == _pattern(256 * _MIB).tobytes()
    collapsing.stop()
    assert collapsing.collapsed_bytes == done


def _mapped(path: Path, count: int) -> tuple[mmap.mmap, np.ndarray]:
    """Return a mapped file of random bytes, all pages of which are resident."""
    path.write_bytes(np.random.default_rng(1).integers(0, 256, count, np.uint8).tobytes())
    with path.open("rb") as file:
        # Pages that are not on the disk yet cannot leave memory.
        os.fsync(file.fileno())
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
    array = np.frombuffer(memory, np.uint8)
    assert array.tobytes() == path.read_bytes()
    assert _field(array.ctypes.data, "Rss") == count
    return memory, array


def test_a_mapped_file_leaves_memory_at_the_stop_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "weights of a model"
    _held, array = _mapped(path, 16 * _MIB)
    dropping = Dropping(path, 6 * _MIB + 100, 4 * _MIB)
    dropping.start()
    dropping.stop()
    # The system may drop what is in the same huge page.
    assert 4 * _MIB <= _field(array.ctypes.data, "Rss") <= 6 * _MIB + mmap.PAGESIZE
    assert array.tobytes() == path.read_bytes()
    dropping.stop()
    assert _field(array.ctypes.data, "Rss") == 16 * _MIB


def test_pages_are_dropped_behind_a_copy_and_not_before_it_has_the_bytes_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.gguf"
    _held, array = _mapped(path, 24 * _MIB)
    written = [100 * _MIB]
    monkeypatch.setattr(pages, "written_bytes", lambda: written[0])
    dropping = Dropping(path, 0, 24 * _MIB, spare=8 * _MIB)
    dropping.start()
    try:
        written[0] += 6 * _MIB
        deadline = time.monotonic() + 10 * pages._DROP_SECONDS
        while time.monotonic() < deadline:
            assert _field(array.ctypes.data, "Rss") == 24 * _MIB
        written[0] += 10 * _MIB
        deadline = time.monotonic() + 10
        while _field(array.ctypes.data, "Rss") > 16 * _MIB + mmap.PAGESIZE:
            assert time.monotonic() < deadline
        # What was not copied yet is not read twice; the system may drop a huge page with others.
        assert _field(array.ctypes.data, "Rss") >= 14 * _MIB
    finally:
        dropping.stop()
    assert array.tobytes() == path.read_bytes()


def test_memory_that_was_written_grows_by_what_is_written_and_not_by_what_is_mapped(
    tmp_path: Path,
) -> None:
    before = pages.written_bytes()
    held, array = _mapped(tmp_path / "weights.gguf", 64 * _MIB)
    assert pages.written_bytes() - before < 32 * _MIB
    assert _field(array.ctypes.data, "Rss") == 64 * _MIB
    _memory_held = _memory(64 * _MIB)
    assert pages.written_bytes() - before > 48 * _MIB
    del held


def test_memory_that_is_mapped_in_the_place_of_the_file_keeps_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights.gguf"
    _held, array = _mapped(path, 8 * _MIB)
    expected = _pattern(8 * _MIB)
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    monkeypatch.setattr(pages, "written_bytes", itertools.count(0, _MIB // 4).__next__)
    dropping = Dropping(path, 0, 8 * _MIB)
    dropping.start()
    try:
        rights, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        at = array.ctypes.data
        assert library.mmap(at, 8 * _MIB, rights, flags | _MAP_FIXED, -1, 0) == at
        ctypes.memmove(at, expected.ctypes.data, 8 * _MIB)
        deadline = time.monotonic() + 20 * pages._DROP_SECONDS
        while time.monotonic() < deadline:
            assert array.tobytes() == expected.tobytes()
    finally:
        dropping.stop()
    assert array.tobytes() == expected.tobytes()


def test_nothing_is_dropped_of_a_file_that_is_not_mapped_or_after_the_stop(tmp_path: Path) -> None:
    path = tmp_path / "weights.gguf"
    _held, array = _mapped(path, _MIB)
    other = Dropping(tmp_path / "another.gguf", 0, _MIB)
    other.start()
    other.stop()
    late = Dropping(path, 0, _MIB)
    late.stop()
    late.start()
    assert _field(array.ctypes.data, "Rss") == _MIB


def test_large_blocks_go_back_to_the_system_when_they_are_freed() -> None:
    # A block that is freed raises the size from which on the C library gives them back.
    code = """
import ctypes, sys
from pathlib import Path
from stagelink_llamacpp.pages import return_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) << 12

if sys.argv[1] == "return":
    return_large_blocks()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def filled(size):
    block = library.malloc(size)
    ctypes.memset(ctypes.c_void_p(block), 1, size)
    return block
library.free(filled(24 << 20))
before = resident()
block = filled(20 << 20)
kept = filled(4096)
library.free(block)
print(resident() - before)
"""
    left = {}
    for asked in ("return", "leave"):
        command = [sys.executable, "-c", code, asked]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("MALLOC_MMAP_THRESHOLD_", None)
        done = subprocess.run(
            command, capture_output=True, check=True, env=environment, text=True, timeout=60
        )
        left[asked] = int(done.stdout)
    if left["leave"] < 16 * _MIB:
        pytest.skip("this C library gives them back as it is")
    assert left["return"] < 2 * _MIB
