"""Parses and checks the header of one safetensors file, and reads its tensors by byte range.

It knows one file; ``folder.py`` knows shards. Format: 8 bytes little-endian header length, a JSON
object of name to dtype, shape and data_offsets, then the data without gaps.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stagelink.checkpoint import strict_json
from stagelink.checkpoint.affine import Affine
from stagelink.checkpoint.limits import (
    READ_PIECE_BYTES,
    SAFETENSORS_HEADER_BYTES_MAX,
    TENSOR_DIMENSIONS_MAX,
    TENSOR_NAME_CHARS_MAX,
    TENSOR_VALUES_MAX,
    TENSORS_MAX,
)
from stagelink.checkpoint.memory import aligned_empty, rows_shape
from stagelink.checkpoint.opened import TensorInfo
from stagelink.checkpoint.refusal import LFS_POINTER, cut_short, refuse, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.weight_file import WeightFile
    from stagelink.errors import CheckpointError

# Bytes of one value. Packed types below a byte are left out: they are quantization.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
}
_PREFIX_BYTES = 8
_AGAIN = "fetch the file again"


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """A tensor and where its bytes lie in its file."""

    info: TensorInfo
    file: WeightFile
    offset: int

    def part(self, rows: tuple[int, int] | None) -> Placed:
        """Return the half-open range ``rows`` of the first axis as a tensor, or this one."""
        if rows is None:
            return self
        row_bytes = self.info.nbytes // max(1, self.info.shape[0])
        shape = rows_shape(self.info.shape, rows)
        nbytes = (rows[1] - rows[0]) * row_bytes
        info = dataclasses.replace(self.info, shape=shape, nbytes=nbytes)
        return Placed(info, self.file, self.offset + rows[0] * row_bytes)

    def inner(self, index: int, name: str) -> Placed:
        """Return one element of the first axis as a tensor under a name of its own."""
        one = self.part((index, index + 1))
        info = dataclasses.replace(one.info, name=name, shape=self.info.shape[1:])
        return dataclasses.replace(one, info=info)

    def floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Read it as float32."""
        return reader.floats(self)

    def rounded_floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Read it as float32, which rounds nothing."""
        return reader.floats(self)

    def bits_of(self, reader: SafetensorsReader) -> np.ndarray:
        """Read its own bits."""
        return reader.bits(self)


def parse_header(file: WeightFile) -> dict[str, Placed]:
    """Read and check a file's header.

    Raises:
        CheckpointError: ``truncated``, ``header``, ``json``, ``tensor_dtype`` or ``offsets``.
    """
    data = _header_bytes(file)
    if not data.startswith(b"{"):
        raise _bad(file, "header", "a header that starts with a brace", shown(data[:8]))
    table = strict_json.parse_object(data, file.path)
    notes = table.pop("__metadata__", None)
    # MLX writes null where a file has none; the safetensors package reads that too.
    notes = {} if notes is None else notes
    if not isinstance(notes, dict) or not all(isinstance(v, str) for v in notes.values()):
        raise _bad(file, "header", "metadata of strings", type(notes).__name__)
    if len(table) > TENSORS_MAX:
        raise _bad(file, "header", f"at most {TENSORS_MAX} tensors", str(len(table)))
    start = _PREFIX_BYTES + len(data)
    placed = [_place(file, name, entry, start) for name, entry in table.items()]
    _check_cover(file, placed, start)
    return {one.info.name: one for one in placed}


class Form(Protocol):
    """A tensor as checkpoints know it, in whatever parts it lies in the files."""

    @property
    def info(self) -> TensorInfo:
        """Name, shape as floats, bytes in the files."""
        ...

    def part(self, rows: tuple[int, int] | None) -> Form:
        """Return rows of the first axis as a tensor of their own, or this one."""
        ...

    def floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Read it as float32."""
        ...

    def rounded_floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Read it as float32, affine values rounded: see `Affine.rounded_floats`."""
        ...

    def bits_of(self, reader: SafetensorsReader) -> np.ndarray:
        """Read its own bits."""
        ...


class SafetensorsReader:
    """Reads tensors of parsed files; counts what it reads."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        """Take the tensors of all files by name."""
        self._forms = forms
        self.bytes_read = 0

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Return the tensor, or its first axis's ``rows``, as float32 in fresh aligned memory."""
        return self._forms[name].part(rows).floats(self)

    def read_stored(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Return the tensor's own bits: float32, float16, or uint16 for BF16."""
        return self._forms[name].part(rows).bits_of(self)

    def read_rounded(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Return what ``read`` does, affine matrices rounded: see `Affine.rounded_floats`."""
        return self._forms[name].part(rows).rounded_floats(self)

    def read_parts(self, name: str) -> dict[str, np.ndarray]:
        """Return the stored parts of an affine matrix: see ``Checkpoint.read_parts``."""
        one = self._forms[name]
        return one.parts(self) if isinstance(one, Affine) else {}

    def floats(self, one: Placed) -> np.ndarray:
        """Return the values of one stored tensor as float32."""
        if one.info.dtype not in _STORED or one.info.dtype.startswith("U"):
            got = f"{one.info.name}: {one.info.dtype}"
            raise _bad(one.file, "tensor_dtype", "F32, F16 or BF16", got)
        if one.info.dtype == "F32":
            return self.bits(one)
        out = aligned_empty(one.info.shape, np.float32)
        self._widen(one, out.reshape(-1))
        return out

    def bits(self, one: Placed) -> np.ndarray:
        """Return the bits of one stored tensor."""
        dtype: np.dtype[Any] = _STORED.get(one.info.dtype, np.dtype(np.uint8))
        known = one.info.dtype in _STORED or ITEM_BYTES[one.info.dtype] == 1
        out = aligned_empty(one.info.shape if known else (one.info.nbytes,), dtype)
        view = out.reshape(-1).view(np.uint8).data
        with one.file.descriptor() as descriptor:
            one.file.read_into(descriptor, view, one.offset)
        self.bytes_read += len(view)
        return out

    def _widen(self, one: Placed, out: np.ndarray) -> None:
        piece = np.empty(READ_PIECE_BYTES // 2, _STORED[one.info.dtype])
        with one.file.descriptor() as descriptor:
            for first in range(0, out.size, piece.size):
                part = piece[: min(piece.size, out.size - first)]
                view = part.view(np.uint8).data
                one.file.read_into(descriptor, view, one.offset + 2 * first)
                self.bytes_read += len(view)
                target = out[first : first + part.size]
                if one.info.dtype == "BF16":
                    # A bfloat16 is the upper half of the float32 of the same value.
                    np.left_shift(part, 16, out=target.view(np.uint32), dtype=np.uint32)
                else:
                    target[...] = part


def _header_bytes(file: WeightFile) -> bytes:
    if file.size < _PREFIX_BYTES:
        raise cut_short(file.path, _PREFIX_BYTES, file.size)
    with file.descriptor() as descriptor:
        prefix = bytearray(_PREFIX_BYTES)
        file.read_into(descriptor, memoryview(prefix), 0)
        length = int.from_bytes(prefix, "little")
        if length > SAFETENSORS_HEADER_BYTES_MAX:
            wanted = f"a header of at most {SAFETENSORS_HEADER_BYTES_MAX} bytes"
            got = LFS_POINTER if prefix == b"version " else f"{length} bytes"
            raise _bad(file, "header", wanted, got)
        if length > file.size - _PREFIX_BYTES:
            raise cut_short(file.path, _PREFIX_BYTES + length, file.size)
        data = bytearray(length)
        file.read_into(descriptor, memoryview(data), _PREFIX_BYTES)
    return bytes(data)


def _place(file: WeightFile, name: str, entry: Any, start: int) -> Placed:
    if not name or len(name) > TENSOR_NAME_CHARS_MAX:
        raise _bad(file, "header", "a tensor name of sensible length", shown(name))
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(file, "header", f"dtype, shape and data_offsets of {shown(name)}", shown(entry))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _bad(file, "tensor_dtype", "one of " + ", ".join(ITEM_BYTES), shown(dtype))
    if not _is_counts(shape) or len(shape) > TENSOR_DIMENSIONS_MAX:
        raise _bad(file, "header", f"a shape of {shown(name)}", shown(shape))
    if not _is_counts(offsets) or len(offsets) != 2:
        raise _bad(file, "offsets", f"begin and end of {shown(name)}", shown(offsets))
    if math.prod(shape) > TENSOR_VALUES_MAX:
        raise _bad(file, "header", f"at most {TENSOR_VALUES_MAX} values", shown(shape))
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        got = f"offsets {shown(offsets)}"
        raise _bad(file, "offsets", f"{nbytes} bytes for {shown(name)}", got)
    info = TensorInfo(name, dtype, tuple(shape), nbytes)
    return Placed(info, file, start + offsets[0])


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _check_cover(file: WeightFile, placed: list[Placed], start: int) -> None:
    reached = start
    for one in sorted(placed, key=lambda each: (each.offset, each.info.nbytes)):
        if one.offset != reached:
            wanted = f"{shown(one.info.name)} at byte {reached - start} of the data"
            raise _bad(file, "offsets", wanted, f"byte {one.offset - start}")
        reached += one.info.nbytes
    if reached > file.size:
        raise cut_short(file.path, reached, file.size)
    if reached < file.size:
        got = f"{file.size - reached} bytes more"
        raise _bad(file, "offsets", f"the file to end at byte {reached}", got)


def _bad(file: WeightFile, reason: str, expected: str, got: str) -> CheckpointError:
    return refuse(reason, file.path, expected=expected, got=got, advice=_AGAIN)
