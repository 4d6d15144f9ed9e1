"""The rows of one call as llama.cpp takes them: positions, sequences, and a pointer to values.

It calls nothing.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagelink_llamacpp.library import Library

    Floats = npt.NDArray[np.float32]


def address_of(rows: Floats) -> int:
    """Return where an array lies; its ``ctypes`` attribute would make a Python object for it."""
    address: int = rows.__array_interface__["data"][0]
    return address


class NativeBatch:
    """The arrays of a ``llama_batch``, made once; every row is an output."""

    def __init__(self, library: Library, rows: int, positions: int) -> None:
        """Make them for ``rows`` rows with so many positions each."""
        api = library.api
        self._per_row = positions
        self._positions = np.zeros(rows * positions, np.int32)
        self._sequences = np.zeros(rows, np.int32)
        self._ones = np.ones(rows, np.int32)
        # Without the flag the last layer drops the rows that nobody asked for.
        self._outputs = np.ones(rows, np.int8)
        pointers = self._sequences.ctypes.data + 4 * np.arange(rows, dtype=np.uint64)
        self._pointers = pointers.astype(np.uint64)
        self._batch = api.llama_batch()
        kinds = dict(api.llama_batch._fields_)
        for name, array in (
            ("pos", self._positions),
            ("n_seq_id", self._ones),
            ("seq_id", self._pointers),
            ("logits", self._outputs),
        ):
            setattr(self._batch, name, ctypes.cast(array.ctypes.data, kinds[name]))
        # The field of the rows' address, without the making of a pointer for each call.
        self._rows = ctypes.c_void_p.from_buffer(self._batch, api.llama_batch.embd.offset)

    def fill(self, address: int, count: int, firsts: list[tuple[int, int, int]]) -> Any:
        """Return the structure for ``count`` rows at ``address``; as `Context.rows` has them."""
        begin = 0
        for sequence, first, own in firsts:
            end = begin + own
            if own == 1:
                self._sequences[begin], self._positions[begin] = sequence, first
            else:
                self._sequences[begin:end] = sequence
                self._positions[begin:end] = np.arange(first, first + own)
            begin = end
        if self._per_row > 1:
            # Text has one position on three axes; the fourth is not used.
            self._positions[count : 2 * count] = self._positions[:count]
            self._positions[2 * count : 3 * count] = self._positions[:count]
            self._positions[3 * count : 4 * count] = 0
        self._batch.n_tokens = count
        self._rows.value = address
        return self._batch
