"""The short causal convolution before a recurrence: each channel by itself, then SiLU.

It keeps no state; delta_slots.py holds the rows that a stream's next piece needs of its past.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["causal_conv"]


def causal_conv(rows: torch.Tensor, past: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Return ``silu(sum_j taps[j] * x[t - (K - 1) + j])`` of every row, in the dtype of ``rows``.

    ``past`` is overwritten with what the next call needs: the last ``K - 1`` rows seen. The taps
    are added oldest first, one after the other, each sum rounded once (as torch's own convolution
    does on a CPU), so a row's bits do not depend on how many rows stand beside it.

    Args:
        rows: ``[n, channels]`` in the compute dtype.
        past: ``[K - 1, channels]``, the rows before the first one; zeros at position 0.
        taps: float32 ``[K, channels]``, oldest first.
    """
    count, behind = rows.shape[0], past.shape[0]
    seen = torch.cat((past, rows))
    wide = seen.float()
    mixed = torch.zeros_like(wide[:count])
    for tap in range(behind + 1):
        mixed.addcmul_(wide[tap : tap + count], taps[tap])
    past.copy_(seen[count:])
    return functional.silu(mixed.to(rows.dtype))
