"""The lead's two ends: token ids to embedded rows, and last rows to logits.

It holds no table in memory: the vocabulary lies in a file as it is stored, and rows are read from
there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import EngineError
from stagelink_llamacpp.context import Context, Shape

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from stagelink.engine import GgufTensor
    from stagelink_llamacpp.context import Floats, Nodes
    from stagelink_llamacpp.library import Library
    from stagelink_llamacpp.setup import Setup

# Rows of one head call: more would only make its logits, rows x vocabulary, larger.
HEAD_ROWS = 32


class Embedding:
    """Reads and dequantizes the rows of the tokens that are asked for, and no others."""

    def __init__(self, path: Path, begin: int, table: GgufTensor, scale: np.float32) -> None:
        """Open the file where the table's data begin at byte ``begin``.

        ``scale`` multiplies every row.
        """
        # Imported here: a follower needs none of it.
        import gguf  # noqa: PLC0415

        self._dequantize = gguf.quants.dequantize
        self._kind = gguf.GGMLQuantizationType(table.kind)
        self._table = table
        self._begin = begin
        self._scale = scale
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def rows(self, token_ids: npt.NDArray[np.int64], out: Floats) -> None:
        """Write the embedded rows ``[n, width]`` of ids that were checked."""
        if not len(token_ids):
            # A round that only closes streams; not every type's reader takes no blocks.
            return
        size = self._table.row_bytes
        packed = np.empty((len(token_ids), size), np.uint8)
        for row, token in enumerate(token_ids.tolist()):
            data = os.pread(self._descriptor, size, self._begin + token * size)
            if len(data) != size:
                raise EngineError(
                    f"llamacpp engine: expected {size} bytes for token {token}, got {len(data)}; "
                    "delete the cache folder's slices and start again",
                    reason="engine",
                )
            packed[row] = np.frombuffer(data, np.uint8)
        values = self._dequantize(packed, self._kind)
        np.multiply(values, self._scale, out=out, dtype=np.float32)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class Head:
    """Final norm and head over a few rows at a time."""

    def __init__(self, library: Library, path: Path, setup: Setup, nodes: Nodes) -> None:
        """Load the head's file."""
        shape = Shape(HEAD_ROWS, 1, HEAD_ROWS, "float16", setup.threads)
        # The vocabulary stands in the file once, and where llama.cpp reorders its type it would be
        # held twice: as the table that nobody reads here, and as the copy that is multiplied.
        self._context = Context(library, path, setup.device, shape, nodes, held_once=True)

    def logits(self, rows: Floats) -> Floats:
        """Return float32 logits ``[n, vocab]`` of rows ``[n, width]``."""
        out = np.empty((len(rows), self._context.vocab), np.float32)
        for begin in range(0, len(rows), HEAD_ROWS):
            part = rows[begin : begin + HEAD_ROWS]
            self._context.logits(part, out[begin : begin + len(part)])
        return out

    def close(self) -> None:
        """Free it."""
        self._context.close()
