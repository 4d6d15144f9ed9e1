"""The two rows buffers of a stage, made once at boot, and how many bytes some rows take in them.

It knows sizes; what the bytes mean is the engine's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stagelink.engine import EngineDescription

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class BoundaryRows:
    """Memory for one round's rows on the way in and on the way out, 64-byte aligned.

    Attributes:
        incoming: uint8 view of the buffer that the ring receives into.
        outgoing: uint8 view of the buffer that the engine writes.
        returned: uint8 view where the last stage collects the rows that return.
        planes: Planes of a row.
        plane_row_bytes: Bytes of one row of one plane.
    """

    def __init__(self, described: EngineDescription, rows_max: int) -> None:
        """Allocate for rounds of at most ``rows_max`` rows."""
        self.planes = described.planes
        self.plane_row_bytes = described.width * _ITEM_BYTES[described.row_dtype]
        size = self.size(rows_max)
        self.incoming = _buffer(size)
        self.outgoing = _buffer(size)
        self.returned = _buffer(size)

    def size(self, rows: int) -> int:
        """Bytes of ``rows`` rows, all planes."""
        return rows * self.planes * self.plane_row_bytes


def _buffer(size: int) -> np.ndarray:
    from stagelink._native import RowsBuffer  # noqa: PLC0415 (sizes are known without the link)

    return np.frombuffer(memoryview(RowsBuffer(size)), dtype=np.uint8)
