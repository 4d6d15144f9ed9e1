"""Makes the arrays that tensors are read into: fresh, and aligned to 64 bytes.

It reads nothing. Matrix kernels give other bits for other alignments, so all weights get the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

ALIGNMENT = 64


def rows_shape(shape: tuple[int, ...], rows: tuple[int, int] | None) -> tuple[int, ...]:
    """Return the shape of rows ``rows`` (half-open) of a tensor's first axis, or of all of it."""
    return shape if rows is None else (rows[1] - rows[0], *shape[1:])


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialised C-ordered array whose first byte lies at a multiple of 64."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes].view(dtype).reshape(shape)
