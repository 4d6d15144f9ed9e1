"""Rows between a link's buffers and torch: checked, seen as words, copied both ways.

It keeps nothing of a buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stagelink_transformers.refusal import CHECKS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]


class Boundary:
    """Rows of ``width`` values in one dtype, on one device."""

    def __init__(self, width: int, name: str, dtype: torch.dtype, device: torch.device) -> None:
        """Take the form of a row."""
        self._width, self._name, self._dtype, self._device = width, name, dtype, device
        self._row_bytes = width * dtype.itemsize

    def see(self, buffer: Bytes, rows: int, name: str) -> Bytes:
        """Return a buffer as uint8 ``[rows, row bytes]``, without a copy.

        Raises:
            EngineError: ``rows_size`` or ``rows_buffer``.
        """
        CHECKS.buffer(buffer, rows * self._row_bytes, name)
        return buffer.reshape(rows, self._row_bytes)

    def take(self, rows: Bytes) -> torch.Tensor:
        """Copy rows ``[rows, row bytes]`` into a tensor ``[rows, width]`` of aligned memory."""
        own = torch.from_numpy(rows.copy()).view(self._dtype)
        return own.to(self._device, copy=True)

    def put(self, rows: torch.Tensor, target: Bytes) -> None:
        """Copy a tensor ``[rows, width]`` into a buffer; complete on return."""
        target[...] = rows.to(self._dtype).contiguous().view(torch.uint8).cpu().numpy()

    def zeros(self, rows: int) -> torch.Tensor:
        """Return rows of zeros."""
        return torch.zeros(rows, self._width, dtype=self._dtype, device=self._device)
