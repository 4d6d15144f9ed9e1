"""The lead's two ends: token ids to embedded rows, and last rows to logits.

It holds no table in memory: the vocabulary lies in a file as it is stored, and rows are read from
there.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import EngineError
from stagelink_llamacpp.context import Context, Shape, parts_of
from stagelink_llamacpp.native_batch import address_of

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from stagelink.engine import GgufTensor
    from stagelink_llamacpp.context import Floats, Nodes
    from stagelink_llamacpp.library import Library
    from stagelink_llamacpp.setup import Setup

# Rows of one head call: more would only make its logits, rows x vocabulary, larger. llama.cpp holds
# them twice, as they are computed and as they are handed out.
HEAD_ROWS, _ROWS_MIN, _ROWS_STEP = 32, 4, 8
_LOGITS_BYTES = 6 << 20
_LOGIT_BYTES = 4


class Embedding:
    """Reads and dequantizes the rows of the tokens that are asked for, and no others."""

    def __init__(
        self, library: Library, path: Path, begin: int, table: GgufTensor, scale: np.float32
    ) -> None:
        """Open the file where the table's data begin at byte ``begin``.

        ``scale`` multiplies every row.

        Raises:
            EngineError: ``native`` where llama.cpp does not read the table's type.
        """
        self._dequantize = library.dequantizer(table.kind)
        self._table = table
        self._begin = begin
        self._scale = scale
        self._packed = (ctypes.c_uint8 * table.row_bytes)()
        self._packed_at = ctypes.addressof(self._packed)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def rows(self, token_ids: npt.NDArray[np.int64], out: Floats) -> None:
        """Write the embedded rows ``[n, width]`` of ids that were checked."""
        size, target = self._table.row_bytes, address_of(out)
        for token in token_ids.tolist():
            got = os.preadv(self._descriptor, (self._packed,), self._begin + token * size)
            if got != size:
                raise EngineError(
                    f"llamacpp engine: expected {size} bytes for token {token}, got {got}; "
                    "delete the cache folder's slices and start again",
                    reason="engine",
                )
            self._dequantize(self._packed_at, target, out.shape[1])
            target += out.strides[0]
        if self._scale != 1:
            np.multiply(out, self._scale, out=out)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The vocabulary in the head's file.

    Attributes:
        vocab: Its tokens.
        span: First byte and bytes of its data, where llama.cpp reorders it, or may do so.
        spare: Bytes that loading it may take beside them: those of what is loaded later.
    """

    vocab: int
    span: tuple[int, int] | None
    spare: int = 0


class Head:
    """Final norm and head over a few rows at a time."""

    def __init__(
        self,
        library: Library,
        path: Path,
        setup: Setup,
        nodes: Nodes,
        table: Table,
    ) -> None:
        """Load the head's file."""
        self._rows = rows_of_call(table.vocab)
        most = 2 * self._rows - 1
        shape = Shape(most, 1, most, "float16", setup.threads)
        # The vocabulary stands in the file once, and where llama.cpp reorders its type it would be
        # held twice: as the table that nobody reads here, and as the copy that is multiplied.
        once = None if table.span is None else (*table.span, table.spare)
        self._context = Context(library, path, setup.device, shape, nodes, held_once=once)

    def logits(self, rows: Floats) -> Floats:
        """Return float32 logits ``[n, vocab]`` of rows ``[n, width]``."""
        out = np.empty((len(rows), self._context.vocab), np.float32)
        if not len(rows):
            return out
        for begin, end in parts_of(len(rows), self._rows):
            self._context.logits(rows[begin:end], out[begin:end])
        return out

    def close(self) -> None:
        """Free it."""
        self._context.close()


def rows_of_call(vocab: int) -> int:
    """Return how many rows the head takes in a call, the last ones of a round apart."""
    fit = _LOGITS_BYTES // (vocab * _LOGIT_BYTES) // _ROWS_STEP * _ROWS_STEP
    return max(_ROWS_MIN, min(HEAD_ROWS, fit))
