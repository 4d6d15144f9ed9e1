"""Functions of few values a row, whose bits do not depend on how many rows stand beside it.

It is for narrow rows only: torch computes the last values of a tensor, beyond its last whole
vector, by another path than the others. Where every row is a multiple of the vectors, none is last.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["exp", "sigmoid", "softplus"]

# Values that torch's widest CPU loop takes at once: two vectors of 512 bits of float32.
_STEP = 32


def exp(rows: torch.Tensor) -> torch.Tensor:
    """Return ``e^x`` of ``[n, values]``."""
    return torch.exp(_widened(rows))[:, : rows.shape[1]]


def sigmoid(rows: torch.Tensor) -> torch.Tensor:
    """Return the sigmoid of ``[n, values]``."""
    return torch.sigmoid(_widened(rows))[:, : rows.shape[1]]


def softplus(rows: torch.Tensor) -> torch.Tensor:
    """Return ``log(1 + e^x)`` of ``[n, values]``."""
    return functional.softplus(_widened(rows))[:, : rows.shape[1]]


def _widened(rows: torch.Tensor) -> torch.Tensor:
    """Return contiguous rows of a multiple of the step, zeros behind."""
    return functional.pad(rows, (0, -rows.shape[1] % _STEP)).contiguous()
