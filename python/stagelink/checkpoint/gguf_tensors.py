"""Reads tensors of a GGUF file as float32, a few rows at a time, in Hugging Face row order.

It parses no metadata. The numbers come from ``gguf.quants``, the format's own reference in numpy.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.checkpoint.limits import CONVERT_PIECE_BYTES
from stagelink.checkpoint.memory import aligned_empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagelink.checkpoint.gguf_walk import GgufTensor
    from stagelink.checkpoint.weight_file import WeightFile

_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the table and, for q and k of llama, over how many heads its rows interleave."""

    tensor: GgufTensor
    heads: int = 0


class GgufReader:
    """Dequantizes tensors of one file; counts what it reads."""

    def __init__(self, file: WeightFile, stored: Mapping[str, Stored]) -> None:
        """Take the file and its tensors by Hugging Face name."""
        self._file = file
        self._stored = stored
        self.bytes_read = 0

    def read(self, name: str) -> np.ndarray:
        """Return the tensor as float32 in fresh aligned memory."""
        out = aligned_empty(self._stored[name].tensor.shape, np.float32)
        flat, first = out.reshape(-1), 0
        for piece in self.pieces(name):
            flat[first : first + piece.size] = piece
            first += piece.size
        return out

    def read_stored(self, name: str) -> np.ndarray:
        """Return the tensor's own bits, rows in Hugging Face order.

        float32, float16, uint16 for BF16, or uint8 ``[..., bytes of a row]`` for a quantized type.
        """
        one = self._stored[name].tensor
        dtype: np.dtype[Any] = _STORED.get(one.type_name, np.dtype(np.uint8))
        shape = one.shape if one.type_name in _STORED else (*one.shape[:-1], one.row_bytes)
        out = aligned_empty(shape, dtype)
        flat, first = out.reshape(-1).view(np.uint8), 0
        for rows in self._rows(name):
            flat[first : first + rows.size] = rows.reshape(-1)
            first += rows.size
        return out

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """Yield the tensor's float32 values in order, flat, a few MiB at a time."""
        type_name = self._stored[name].tensor.type_name
        for rows in self._rows(name):
            yield _dequantize(rows, type_name)

    def _rows(self, name: str) -> Iterator[np.ndarray]:
        # Yields uint8 [rows, row_bytes]; whole heads where their rows have to change places.
        one = self._stored[name]
        tensor, row_bytes = one.tensor, one.tensor.row_bytes
        rows = math.prod(tensor.shape[:-1])
        unit = rows // one.heads if one.heads else 1
        at_once = max(1, CONVERT_PIECE_BYTES // (4 * tensor.shape[-1] * unit)) * unit
        with self._file.descriptor() as descriptor:
            for first in range(0, rows, at_once):
                count = min(at_once, rows - first)
                piece = np.empty((count, row_bytes), np.uint8)
                view = piece.reshape(-1).data
                self._file.read_into(descriptor, view, tensor.offset + first * row_bytes)
                self.bytes_read += piece.size
                yield _uninterleave(piece, unit) if one.heads else piece


def _uninterleave(rows: np.ndarray, head_width: int) -> np.ndarray:
    """Turn each head's rows from (0, h/2, 1, h/2 + 1, ...) into (0, 1, ..., h - 1)."""
    split = rows.reshape(-1, head_width // 2, 2, rows.shape[-1])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def _dequantize(rows: np.ndarray, type_name: str) -> np.ndarray:
    # Imported here: the package takes a third of a second, and a cached conversion needs none.
    import gguf  # noqa: PLC0415

    kind = gguf.GGMLQuantizationType[type_name]
    # As one long row: the package works on 16 rows at a time, which is slow for narrow ones.
    with np.errstate(all="ignore"):
        # A damaged scale may be infinite; that is a value like any other here.
        values = gguf.quants.dequantize(rows.reshape(1, -1), kind)
    return np.asarray(values, np.float32).reshape(-1)
