"""MLX's affine quantization: groups of a row share a scale and a bias, values are 2 to 8 bits.

It reads through the reader that it is handed. Source of the format: mlx.core.quantize; values lie
one after the other in each row, lowest bits first.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stagelink.checkpoint.limits import CONVERT_PIECE_BYTES
from stagelink.checkpoint.memory import aligned_empty
from stagelink.checkpoint.opened import TensorInfo

if TYPE_CHECKING:
    from stagelink.checkpoint.safetensors_file import Placed, SafetensorsReader

BITS: Final = (2, 3, 4, 5, 6, 8)
GROUPS: Final = (16, 32, 64, 128)
_WORD_BITS: Final = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Affine:
    """A quantized matrix, or a stack of them, in its three parts.

    Attributes:
        info: Its shape as floats; dtype ``"AFFINE4_64"`` for 4 bits in groups of 64.
        weight: uint32 ``[..., rows, in * bits / 32]``.
        scales: ``[..., rows, in / group]``, float.
        biases: As ``scales``.
        bits: Bits of a value.
        group: Values that share a scale and a bias.
    """

    info: TensorInfo
    weight: Placed
    scales: Placed
    biases: Placed
    bits: int
    group: int

    @classmethod
    def of(
        cls, name: str, parts: tuple[Placed, Placed, Placed], bits: int, group: int
    ) -> Affine | None:
        """Put three parts together; ``None`` where they do not fit each other."""
        weight, scales, biases = parts
        *outer, groups = scales.info.shape or (0,)
        width = groups * group
        packed = (*outer, width * bits // _WORD_BITS)
        right = (
            len(outer) >= 1
            and weight.info.dtype == "U32"
            and scales.info.dtype in ("F32", "F16", "BF16")
            and (biases.info.dtype, biases.info.shape) == (scales.info.dtype, scales.info.shape)
            and weight.info.shape == packed
            and width * bits % _WORD_BITS == 0
        )
        if not right:
            return None
        nbytes = sum(part.info.nbytes for part in parts)
        info = TensorInfo(name, f"AFFINE{bits}_{group}", (*outer, width), nbytes)
        return cls(info, weight, scales, biases, bits, group)

    def part(self, rows: tuple[int, int] | None) -> Affine:
        """Return rows of the first axis as a tensor of their own, or this one."""
        if rows is None:
            return self
        return self._of_parts(*(one.part(rows) for one in self._parts()))

    def inner(self, index: int, name: str) -> Affine:
        """Return one matrix of a stack under a name of its own."""
        parts = (one.inner(index, one.info.name) for one in self._parts())
        made = self._of_parts(*parts)
        return dataclasses.replace(made, info=dataclasses.replace(made.info, name=name))

    def floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return float32 ``q * scale + bias``, as MLX's products of float32 rows take the matrix.

        Nothing is rounded to the scales' dtype; ``rounded_floats`` does that.
        """
        return self._dequantized(reader, "F32")

    def rounded_floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return float32, product and sum each rounded to the scales' dtype: ``mx.dequantize``.

        It is what a matrix held in 16 bits must come from. For float32 rows it would be another
        one than MLX multiplies: the roundings are a tenth of the step between two values.
        """
        return self._dequantized(reader, self.scales.info.dtype)

    def _dequantized(self, reader: SafetensorsReader, rounded_to: str) -> np.ndarray:
        """Return float32, product and sum each rounded to a stored dtype."""
        out = aligned_empty(self.info.shape, np.float32)
        rows = math.prod(self.info.shape[:-1])
        width = self.info.shape[-1]
        flat = out.reshape(rows, width)
        weight, scales, biases = (reader.bits(one) for one in self._parts())
        packed = weight.view(np.uint8).reshape(rows, -1)
        kind = self.scales.info.dtype
        scale = _floats(scales, kind).reshape(rows, -1, 1)
        bias = _floats(biases, kind).reshape(rows, -1, 1)
        step = max(1, CONVERT_PIECE_BYTES // (4 * width))
        with np.errstate(all="ignore"):
            for first in range(0, rows, step):
                span = slice(first, first + step)
                values = unpack(packed[span], self.bits).astype(np.float32)
                grouped = values.reshape(len(values), -1, self.group)
                scaled = _rounded(grouped * scale[span], rounded_to)
                summed = _rounded(scaled + bias[span], rounded_to)
                flat[span] = summed.reshape(len(values), width)
        return out

    def bits_of(self, reader: SafetensorsReader) -> np.ndarray:
        """Return the packed values, uint32."""
        return reader.bits(self.weight)

    def parts(self, reader: SafetensorsReader) -> dict[str, np.ndarray]:
        """Return ``weight``, ``scales`` and ``biases`` as stored; BF16 as uint16."""
        return {
            "weight": reader.bits(self.weight),
            "scales": reader.bits(self.scales),
            "biases": reader.bits(self.biases),
        }

    def _parts(self) -> tuple[Placed, Placed, Placed]:
        return self.weight, self.scales, self.biases

    def _of_parts(self, weight: Placed, scales: Placed, biases: Placed) -> Affine:
        shape = (*scales.info.shape[:-1], self.info.shape[-1])
        nbytes = weight.info.nbytes + scales.info.nbytes + biases.info.nbytes
        info = dataclasses.replace(self.info, shape=shape, nbytes=nbytes)
        return dataclasses.replace(self, info=info, weight=weight, scales=scales, biases=biases)


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return uint8 ``[rows, values]`` of packed bytes ``[rows, bytes]``."""
    if bits == 8:
        return packed
    if bits in (2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        spread = packed[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
        return spread.reshape(len(packed), -1)
    # Values that lie across bytes: as single bits first, eight to thirteen times the memory.
    single = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(packed), -1, bits)
    powers = (1 << np.arange(bits)).astype(np.uint8)
    found: np.ndarray = (single * powers).sum(axis=2, dtype=np.uint8)
    return found


def _floats(stored: np.ndarray, kind: str) -> np.ndarray:
    if kind == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def _rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """Round float32 to a stored dtype, and back."""
    if kind == "F32":
        return values
    if kind == "F16":
        return values.astype(np.float16).astype(np.float32)
    return round_bfloat16(values)


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even; what is no number stays none."""
    words = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = (words + (0x7FFF + (words >> 16 & 1))) & np.uint32(0xFFFF0000)
    result: np.ndarray = np.where(np.isnan(values), values, nearest.view(np.float32))
    return result


def asked(value: Any) -> tuple[int, int] | None:
    """Return (bits, group) of an entry of a config's ``quantization``, or ``None`` for others."""
    if not isinstance(value, dict) or value.get("mode", "affine") != "affine":
        return None
    bits, group = value.get("bits"), value.get("group_size")
    if type(bits) is not int or type(group) is not int:
        return None
    return (bits, group) if bits in BITS and group in GROUPS else None
