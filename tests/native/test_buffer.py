"""RowsBuffer, and which Python memory the ring takes.

What a ring does with the bytes is in test_ring.py.
"""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink import _native
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType


@given(st.integers(min_value=0, max_value=1 << 16))
def test_a_buffer_of_any_size_is_zeroed_aligned_and_writable(size: int) -> None:
    buffer = _native.RowsBuffer(size)
    view = np.frombuffer(memoryview(buffer), dtype=np.uint8)
    assert len(buffer) == view.size == size
    assert view.ctypes.data % 64 == 0
    assert not view.any()
    view[:] = 7
    assert bytes(buffer) == b"\x07" * size


def test_a_view_keeps_the_memory_of_a_buffer_that_is_gone() -> None:
    view = np.frombuffer(memoryview(_native.RowsBuffer(1 << 20)), dtype=np.uint8)
    gc.collect()
    view[:] = 1
    assert view.sum() == 1 << 20


def test_the_buffers_format_is_bytes() -> None:
    view = memoryview(_native.RowsBuffer(8))
    assert (view.format, view.ndim, view.readonly, view.c_contiguous) == ("B", 1, False, True)


def test_more_than_a_gibibyte_is_refused_before_it_is_allocated() -> None:
    for size in [(1 << 30) + 1, 1 << 62]:
        with pytest.raises(ConfigError, match="1 GiB") as raised:
            _native.RowsBuffer(size)
        assert raised.value.reason == "buffer_size"
    with pytest.raises(ValueError, match="negative"):
        _native.RowsBuffer(-1)


@pytest.mark.parametrize(
    "rows",
    [bytes(64), np.zeros(64, dtype=np.uint8)[::2], np.zeros((8, 8), dtype=np.uint8).T],
    ids=["read only", "with gaps", "transposed"],
)
def test_memory_that_cannot_hold_rows_is_a_type_error(
    lone_ring: _native.Ring, rows: object
) -> None:
    with pytest.raises((TypeError, BufferError)):
        lone_ring.receive_rows(1, rows)  # type: ignore[arg-type]


@pytest.fixture
def lone_ring(stage: ModuleType, key_file: str) -> _native.Ring:
    """A ring of two whose other end is a thread's, for calls that never reach the wire."""
    listener = _native.Listener("127.0.0.1:0")
    address = listener.address
    joined: list[_native.Ring] = []

    def follow() -> None:
        joined.append(stage.join(1, 2, address, key_file, _native.Listener("127.0.0.1:0")))

    thread = threading.Thread(target=follow)
    thread.start()
    ring: _native.Ring = stage.join(0, 2, None, key_file, listener)
    thread.join()
    return ring
