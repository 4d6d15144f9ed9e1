"""Walks a GGUF file's metadata and tensor table, and believes nothing that it has not checked.

It knows no model. It is the only reader of the format here: one parser, so that no second one can
see something else in a hostile file. Layout: the GGUF specification, ggml-org/ggml docs/gguf.md.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint import limits
from stagelink.checkpoint.gguf_metadata import Metadata
from stagelink.checkpoint.refusal import LFS_POINTER, cut_short, refuse, shown

if TYPE_CHECKING:
    from stagelink.checkpoint.weight_file import WeightFile
    from stagelink.errors import CheckpointError

# Tensor types that are done: name, values of a block, bytes of a block.
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
# Names of the others, so that a refusal can say which one it is.
_OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4",
    41: "Q1_0",
}  # fmt: skip

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q",
            12: "<d"}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT_DEFAULT = 32
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# In all arrays together: each is an object of Python, tens of times what it is in the file.
_ELEMENTS_MAX = 8_000_000
_AGAIN = "fetch the file again"


@dataclasses.dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table.

    Attributes:
        name: Name in the GGUF scheme.
        type_name: One of the names in ``TENSOR_TYPES``.
        kind: The type's number in the file.
        shape: Dimensions, rows first (the file has them the other way round).
        offset: First byte in the file.
        row_bytes: Bytes of one row of ``shape[-1]`` values.
        nbytes: Bytes of the tensor.
    """

    name: str
    type_name: str
    kind: int
    shape: tuple[int, ...]
    offset: int
    row_bytes: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class GgufTable:
    """What a GGUF file says before its tensor data.

    Attributes:
        values: Metadata by key.
        tensors: Tensor table by name.
        kinds: Value type of each key as the file has it: its number, and for an array that of its
            elements too. Whoever writes a value again must write the same type.
    """

    values: Metadata
    tensors: dict[str, GgufTensor]
    kinds: dict[str, tuple[int, ...]]


def walk(file: WeightFile) -> GgufTable:
    """Read and check everything but the tensor data.

    Raises:
        CheckpointError: ``truncated``, ``header``, ``offsets``, ``tensor_duplicate``,
            ``tensor_shape`` or ``quantization``.
    """
    cursor = _Cursor(file)
    magic = cursor.take(4)
    if magic != _MAGIC:
        got = LFS_POINTER if magic == b"vers" else "another one"
        raise _bad(file, "header", "the magic GGUF", got)
    version = cursor.u32()
    if version not in _VERSIONS:
        raise _bad(file, "header", "little-endian GGUF version 2 or 3", f"version {version}")
    tensor_count, key_count = cursor.u64(), cursor.u64()
    if tensor_count > limits.TENSORS_MAX or key_count > limits.GGUF_KEYS_MAX:
        wanted = f"at most {limits.TENSORS_MAX} tensors and {limits.GGUF_KEYS_MAX} keys"
        raise _bad(file, "header", wanted, f"{tensor_count} and {key_count}")
    values: dict[str, Any] = {}
    kinds: dict[str, tuple[int, ...]] = {}
    for _ in range(key_count):
        key = cursor.text(limits.GGUF_KEY_BYTES_MAX)
        if key in values:
            raise _bad(file, "header", "each key once", f"{shown(key)} twice")
        kinds[key], values[key] = cursor.value()
    entries = [_take_tensor(cursor) for _ in range(tensor_count)]
    tensors = _placed(file, entries, cursor.position, _alignment(file, values))
    return GgufTable(Metadata(values, lambda: dict(walk(file).values)), tensors, kinds)


class _Cursor:
    """Reads forward over the metadata; loads a piece of the file only when it is reached."""

    def __init__(self, file: WeightFile) -> None:
        self.file = file
        self.position = 0
        self._loaded = bytearray()
        self._elements = 0
        self._end = min(file.size, limits.GGUF_METADATA_BYTES_MAX)

    def take(self, count: int) -> bytes:
        start = self._reserve(count)
        return bytes(self._loaded[start : start + count])

    def u32(self) -> int:
        return int(_U32.unpack_from(self._loaded, self._reserve(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self._loaded, self._reserve(8))[0])

    def text(self, bytes_max: int = limits.GGUF_STRING_BYTES_MAX) -> str:
        length = self.u64()
        if length > bytes_max:
            raise self._bad("header", f"text of at most {bytes_max} bytes", f"{length} bytes")
        data = self.take(length)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise self._bad("header", "UTF-8 text", shown(data)) from None

    def _texts(self, count: int) -> list[str]:
        """Take a list of texts: what `text` does, without a call for each of a million words."""
        found = []
        loaded, length_at = self._loaded, _U64.unpack_from
        begin, ready = self.position + 8, len(self._loaded)
        most = limits.GGUF_STRING_BYTES_MAX
        for _ in range(count):
            # ``begin`` is where the next text starts, behind its length.
            if begin <= ready:
                end = begin + length_at(loaded, begin - 8)[0]
            if begin > ready or end > ready or end - begin > most:
                self.position = begin - 8
                found.append(self.text(most))
                begin, ready = self.position + 8, len(loaded)
                continue
            try:
                found.append(loaded[begin:end].decode("utf-8"))
            except UnicodeDecodeError:
                self.position = end
                raise self._bad("header", "UTF-8 text", shown(bytes(loaded[begin:end]))) from None
            begin = end + 8
        self.position = begin - 8
        return found

    def value(self) -> tuple[tuple[int, ...], Any]:
        kind = self.u32()
        if kind == _ARRAY:
            inner, length = self.u32(), self.u64()
            if inner == _ARRAY:
                raise self._bad("header", "arrays of plain values", "an array of arrays")
            if length > limits.GGUF_ARRAY_LENGTH_MAX:
                wanted = f"at most {limits.GGUF_ARRAY_LENGTH_MAX} values"
                raise self._bad("header", wanted, f"an array of {length}")
            self._elements += length
            if self._elements > _ELEMENTS_MAX:
                wanted = f"at most {_ELEMENTS_MAX} values in all arrays"
                raise self._bad("header", wanted, str(self._elements))
            return (kind, inner), self._values(inner, length)
        return (kind,), self._values(kind, 1)[0]

    def _values(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return self._texts(count)
        if kind == _BOOL:
            data = self.take(count)
            if any(byte > 1 for byte in data):
                raise self._bad("header", "booleans of 0 or 1", shown(data))
            return [bool(byte) for byte in data]
        if kind not in _SCALARS:
            raise self._bad("header", "a known value type", f"type {kind}")
        form = _SCALARS[kind]
        data = self.take(count * struct.calcsize(form))
        return list(struct.unpack(f"<{count}{form[1]}", data))

    def _reserve(self, count: int) -> int:
        # Returns where the next ``count`` bytes start, and moves past them.
        start, self.position = self.position, self.position + count
        if self.position > self._end:
            if self._end < self.file.size:
                wanted = f"metadata of at most {self._end} bytes"
                raise self._bad("header", wanted, "more")
            raise cut_short(self.file.path, self.position, self.file.size)
        while self.position > len(self._loaded):
            first = len(self._loaded)
            self._loaded += bytes(min(limits.READ_PIECE_BYTES, self._end - first))
            with self.file.descriptor() as descriptor, memoryview(self._loaded) as view:
                self.file.read_into(descriptor, view[first:], first)
        return start

    def _bad(self, reason: str, expected: str, got: str) -> CheckpointError:
        return _bad(self.file, reason, expected, f"{got} near byte {self.position}")


def _take_tensor(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name = cursor.text(limits.TENSOR_NAME_CHARS_MAX)
    dimensions = cursor.u32()
    if not 1 <= dimensions <= limits.GGUF_DIMENSIONS_MAX:
        wanted = f"1 to {limits.GGUF_DIMENSIONS_MAX} dimensions of {shown(name)}"
        raise _bad(cursor.file, "tensor_shape", wanted, str(dimensions))
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    return name, cursor.u32(), shape, cursor.u64()


def _placed(
    file: WeightFile,
    entries: list[tuple[str, int, tuple[int, ...], int]],
    end: int,
    alignment: int,
) -> dict[str, GgufTensor]:
    start = -(-end // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    reached = start
    for name, kind, shape, offset in sorted(entries, key=lambda entry: entry[3]):
        if name in tensors:
            raise _bad(file, "tensor_duplicate", "each tensor once", f"{shown(name)} twice")
        tensor = _sized(file, name, kind, shape, start + offset)
        # Tensors follow each other, but for the padding; a gap or an overlap hides something.
        if tensor.offset != -(-reached // alignment) * alignment:
            wanted = f"{shown(name)} at byte {-(-reached // alignment) * alignment}"
            raise _bad(file, "offsets", wanted, str(tensor.offset))
        reached = tensor.offset + tensor.nbytes
        tensors[name] = tensor
    if reached > file.size:
        raise cut_short(file.path, reached, file.size)
    if tensors and file.size - reached >= alignment:
        got = f"{file.size - reached} bytes more"
        raise _bad(file, "offsets", f"the file to end near byte {reached}", got)
    return tensors


def _sized(
    file: WeightFile, name: str, kind: int, shape: tuple[int, ...], offset: int
) -> GgufTensor:
    if kind not in TENSOR_TYPES:
        done = ", ".join(sorted(name for name, _, _ in TENSOR_TYPES.values()))
        got = f"{_OTHER_TYPES.get(kind, f'type {kind}')} for {shown(name)}"
        advice = "use a file quantized to one of these"
        raise refuse("quantization", file.path, expected=done, got=got, advice=advice)
    type_name, block_values, block_bytes = TENSOR_TYPES[kind]
    if any(not 1 <= one <= limits.TENSOR_VALUES_MAX for one in shape) or (
        math.prod(shape) > limits.TENSOR_VALUES_MAX
    ):
        raise _bad(file, "tensor_shape", f"a sensible shape of {shown(name)}", shown(shape))
    if shape[-1] % block_values:
        wanted = f"rows of whole blocks of {block_values} for {shown(name)}"
        raise _bad(file, "tensor_shape", wanted, shown(shape))
    row_bytes = shape[-1] // block_values * block_bytes
    nbytes = math.prod(shape[:-1]) * row_bytes
    return GgufTensor(name, type_name, kind, shape, offset, row_bytes, nbytes)


def _alignment(file: WeightFile, values: dict[str, Any]) -> int:
    alignment = values.get("general.alignment", _ALIGNMENT_DEFAULT)
    if (
        type(alignment) is not int
        or not 1 <= alignment <= limits.GGUF_ALIGNMENT_MAX
        or alignment & (alignment - 1)
    ):
        wanted = f"an alignment of a power of two up to {limits.GGUF_ALIGNMENT_MAX}"
        raise _bad(file, "header", wanted, shown(alignment))
    return alignment


def _bad(file: WeightFile, reason: str, expected: str, got: str) -> CheckpointError:
    return refuse(reason, file.path, expected=expected, got=got, advice=_AGAIN)
