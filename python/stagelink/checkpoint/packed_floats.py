"""Weights packed below a byte or in 8-bit floats: FP8 in blocks, and GPT-OSS's MXFP4 experts.

It reads through the reader that it is handed; both become float32 exactly as their formula says.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from stagelink.checkpoint.memory import aligned_empty

if TYPE_CHECKING:
    from stagelink.checkpoint.opened import TensorInfo
    from stagelink.checkpoint.safetensors_file import Placed, SafetensorsReader

# The sixteen values of four bits: sign, two bits of exponent, one of mantissa (OCP MX, FP4 E2M1).
_FP4: Final = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32
)
_EXPONENT_BIAS: Final = 127
MXFP4_GROUP: Final = 32


@dataclasses.dataclass(frozen=True, slots=True)
class BlockFp8:
    """A matrix of FP8 (E4M3) whose blocks share a factor each.

    Attributes:
        info: Its shape; dtype ``"FP8_BLOCK"``.
        weight: ``[rows, in]``.
        scales: ``[rows / block, in / block]``, both rounded up: what a block is multiplied by.
        block: Rows and columns of a block.
        first: First row within the stored matrix.
    """

    info: TensorInfo
    weight: Placed
    scales: Placed
    block: tuple[int, int]
    first: int = 0

    def part(self, rows: tuple[int, int] | None) -> BlockFp8:
        """Return rows of the first axis as a tensor of their own, or this one."""
        if rows is None:
            return self
        weight = self.weight.part(rows)
        info = dataclasses.replace(self.info, shape=weight.info.shape, nbytes=weight.info.nbytes)
        return dataclasses.replace(self, info=info, weight=weight, first=self.first + rows[0])

    def floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return float32: each value times its block's factor, rounded once."""
        rows, width = self.info.shape
        high, wide = self.block
        first, end = self.first // high, -(-(self.first + rows) // high)
        scales = reader.floats(self.scales.part((first, end)))
        out = aligned_empty((rows, width), np.float32)
        np.take(fp8_values(), reader.bits(self.weight), out=out)
        columns = np.repeat(scales, wide, axis=1)[:, :width]
        for n in range(first, end):
            begin, last = max(0, n * high - self.first), min(rows, (n + 1) * high - self.first)
            with np.errstate(all="ignore"):
                out[begin:last] *= columns[n - first]
        return out

    def rounded_floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return what ``floats`` does."""
        return self.floats(reader)

    def bits_of(self, reader: SafetensorsReader) -> np.ndarray:
        """Return the FP8 values, uint8."""
        return reader.bits(self.weight)


@dataclasses.dataclass(frozen=True, slots=True)
class Mxfp4:
    """GPT-OSS's experts: ``[experts, in, out]`` as floats, stored ``[experts, out, in / 32, 16]``.

    Attributes:
        info: Its shape as floats; dtype ``"MXFP4"``.
        blocks: uint8, two values each, the lower four bits first.
        scales: uint8 ``[experts, out, in / 32]``: exponents of two, 127 too large.
    """

    info: TensorInfo
    blocks: Placed
    scales: Placed

    def part(self, rows: tuple[int, int] | None) -> Mxfp4:
        """Return some of the experts as a tensor of their own, or this one."""
        if rows is None:
            return self
        blocks, scales = self.blocks.part(rows), self.scales.part(rows)
        info = dataclasses.replace(
            self.info,
            shape=(rows[1] - rows[0], *self.info.shape[1:]),
            nbytes=blocks.info.nbytes + scales.info.nbytes,
        )
        return Mxfp4(info, blocks, scales)

    def floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return float32, one expert at a time so that the peak stays low."""
        out = aligned_empty(self.info.shape, np.float32)
        for n in range(self.info.shape[0]):
            blocks = reader.bits(self.blocks.inner(n, self.info.name)).reshape(-1, 16)
            exponents = reader.bits(self.scales.inner(n, self.info.name)).reshape(-1, 1)
            values = np.empty((len(blocks), MXFP4_GROUP), np.float32)
            values[:, 0::2] = _FP4[blocks & 15]
            values[:, 1::2] = _FP4[blocks >> 4]
            shift = exponents.astype(np.int32) - _EXPONENT_BIAS
            with np.errstate(all="ignore"):
                # A damaged exponent may be too large; that is a value like any other here.
                scaled = np.ldexp(values, shift).reshape(self.info.shape[2], self.info.shape[1])
            out[n] = scaled.T
        return out

    def rounded_floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return what ``floats`` does."""
        return self.floats(reader)

    def bits_of(self, reader: SafetensorsReader) -> np.ndarray:
        """Return the packed values, uint8."""
        return reader.bits(self.blocks)


def fp8_values() -> np.ndarray:
    """Return the 256 values of FP8 E4M3 (no infinities; 0x7F and 0xFF are no number)."""
    byte = np.arange(256, dtype=np.int32)
    exponent, mantissa = byte >> 3 & 15, (byte & 7).astype(np.float64)
    normal = np.ldexp(1.0 + mantissa / 8.0, exponent - 7)
    small = np.ldexp(mantissa / 8.0, -6)
    values = np.where(exponent == 0, small, normal) * np.where(byte & 128, -1.0, 1.0)
    values[byte & 127 == 127] = np.nan
    return values.astype(np.float32)
