"""Arrays that begin on a 64-byte border, and views carved out of them.

It allocates at load only; nothing here is called for new memory inside a round.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

ALIGNMENT = 64
FLOAT_BYTES = 4


def aligned_zeros(*shape: int) -> Floats:
    """Return float32 zeros whose first byte is 64-byte aligned.

    A BLAS may take another path, with other bits, for another alignment: so no array that the
    engine computes with is left to chance. The pages are touched when they are first used.
    """
    count = math.prod(shape)
    slack = ALIGNMENT // FLOAT_BYTES
    flat = np.zeros(count + slack, dtype=np.float32)
    skip = (-flat.ctypes.data % ALIGNMENT) // FLOAT_BYTES
    return flat[skip : skip + count].reshape(shape)


def carve(flat: Floats, *shape: int) -> Floats:
    """Return the beginning of a flat scratch array, seen as ``shape``."""
    return flat[: math.prod(shape)].reshape(shape)
