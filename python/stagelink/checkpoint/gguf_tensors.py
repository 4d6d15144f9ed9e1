"""Reads tensors of a GGUF file as float32, a few rows at a time, in Hugging Face row order.

It parses no metadata. The numbers come from ``gguf.quants``, the format's own reference in numpy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.checkpoint.gguf_names import Stored, Woven
from stagelink.checkpoint.limits import CONVERT_PIECE_BYTES
from stagelink.checkpoint.memory import aligned_empty, rows_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


class GgufReader:
    """Dequantizes tensors of one checkpoint's files; counts what it reads."""

    def __init__(self, stored: Mapping[str, Stored | Woven]) -> None:
        """Take the tensors by Hugging Face name."""
        self._stored = stored
        self.bytes_read = 0

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Return the tensor, or its first axis's ``rows``, as float32 in fresh aligned memory."""
        out = aligned_empty(rows_shape(self._stored[name].shape, rows), np.float32)
        flat, first = out.reshape(-1), 0
        for piece in self.pieces(name, rows):
            flat[first : first + piece.size] = piece
            first += piece.size
        return out

    def read_stored(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Return the tensor's own bits, rows in Hugging Face order.

        float32, float16, uint16 for BF16, or uint8 ``[..., bytes of a row]`` for a quantized type;
        of a woven tensor of such a type its floats.
        """
        one = self._stored[name]
        kind = one.type_name
        if isinstance(one, Woven):
            if kind == "F32" or kind not in _STORED:
                return self.read(name, rows)
            out = aligned_empty(rows_shape(one.shape, rows), _STORED[kind])
            for at, values in enumerate(self._woven(one, rows, as_stored=True)):
                out[at] = values.reshape(out.shape[1:])
            return out
        shape = rows_shape(one.shape, rows)
        shape = shape if kind in _STORED else (*shape[:-1], one.tensor.row_bytes)
        out = aligned_empty(shape, _STORED.get(kind, np.dtype(np.uint8)))
        flat, first = out.reshape(-1).view(np.uint8), 0
        for piece in self._rows(one, rows):
            flat[first : first + piece.size] = piece.reshape(-1)
            first += piece.size
        return out

    def pieces(self, name: str, rows: tuple[int, int] | None = None) -> Iterator[np.ndarray]:
        """Yield the tensor's float32 values in order, flat, a few MiB at a time."""
        one = self._stored[name]
        if isinstance(one, Woven):
            yield from self._woven(one, rows, as_stored=False)
            return
        for piece in self._rows(one, rows):
            values = _dequantize(piece, one.type_name)
            yield values - np.float32(one.offset) if one.offset else values

    def _woven(
        self, one: Woven, wanted: tuple[int, int] | None, *, as_stored: bool
    ) -> Iterator[np.ndarray]:
        """Yield a woven tensor's experts in order, flat; the formula is that of `Woven`."""
        for expert in range(*(wanted or (0, one.shape[0]))):
            turned = []
            for part in one.parts:
                bits = np.concatenate(list(self._rows(part, (expert, expert + 1))))
                kind = part.type_name
                values = (
                    bits.reshape(-1).view(_STORED[kind]) if as_stored else _dequantize(bits, kind)
                )
                turned.append(values.reshape(part.shape[1], -1).T)
            yield np.stack(turned, axis=-1).reshape(-1)

    def _rows(self, one: Stored, wanted: tuple[int, int] | None) -> Iterator[np.ndarray]:
        # Yields uint8 [rows, row_bytes]; whole heads are read where rows have to change places.
        begin, end = _last_axis_rows(one.shape, wanted)
        unit = math.prod(one.shape[:-1]) // one.heads if one.heads else 1
        at_once = max(1, CONVERT_PIECE_BYTES // (4 * one.shape[-1] * unit)) * unit
        with one.file.descriptor() as descriptor:
            for first in range(begin // unit * unit, -(-end // unit) * unit, at_once):
                count = min(at_once, -(-end // unit) * unit - first)
                piece = np.empty((count, one.tensor.row_bytes), np.uint8)
                at = one.tensor.offset + (one.first_row + first) * one.tensor.row_bytes
                one.file.read_into(descriptor, piece.reshape(-1).data, at)
                self.bytes_read += piece.size
                piece = _uninterleave(piece, unit) if one.heads else piece
                yield piece[max(0, begin - first) : end - first]


def _last_axis_rows(shape: tuple[int, ...], wanted: tuple[int, int] | None) -> tuple[int, int]:
    """Return which rows of ``shape[-1]`` values a range of the first axis is."""
    if len(shape) == 1:
        return 0, 1
    inner = math.prod(shape[1:-1])
    begin, end = (0, shape[0]) if wanted is None else wanted
    return begin * inner, end * inner


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
