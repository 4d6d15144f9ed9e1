"""The rows buffers of a stage, made once at boot, and how many bytes some rows take in them.

It knows sizes; what the bytes mean is the engine's business, when they move is `boundary`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stagelink.engine import EngineDescription

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Rows of a round that take more travel on the bulk lane (docs/protocol.md 6.6), the constant
# ROW_LANE_BYTES of the extension, which a ring of one stage does not load.
ROW_LANE_BYTES = 65_536


class BoundaryRows:
    """Memory for the rows of two rounds on the way in and two on the way out, 64-byte aligned.

    Attributes:
        incoming: Two uint8 views; of the bulk lane one fills while the other is computed from.
        landing: uint8 view that rounds of the row lane are received into.
        outgoing: Two uint8 views; the engine writes one while the other leaves.
        returned: uint8 view where the last stage collects the rows that return.
        planes: Planes of a row.
        plane_row_bytes: Bytes of one row of one plane.
        rows_max: Most rows of a round.
    """

    def __init__(self, described: EngineDescription, rows_max: int) -> None:
        """Allocate for rounds of at most ``rows_max`` rows."""
        self.planes = described.planes
        self.plane_row_bytes = described.width * _ITEM_BYTES[described.row_dtype]
        self.rows_max = rows_max
        size = self.size(rows_max)
        self.incoming = (_buffer(size), _buffer(size))
        self.landing = _buffer(min(size, ROW_LANE_BYTES))
        self.outgoing = (_buffer(size), _buffer(size))
        self.returned = _buffer(size)

    def size(self, rows: int) -> int:
        """Bytes of ``rows`` rows, all planes."""
        return rows * self.planes * self.plane_row_bytes

    def is_bulk(self, rows: int) -> bool:
        """Whether so many rows travel on the bulk lane."""
        return self.size(rows) > ROW_LANE_BYTES


def _buffer(size: int) -> np.ndarray:
    from stagelink._native import RowsBuffer  # noqa: PLC0415 (sizes are known without the link)

    return np.frombuffer(memoryview(RowsBuffer(size)), dtype=np.uint8)
