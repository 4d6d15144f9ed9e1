"""The short causal convolution before a recurrence: each channel by itself, then SiLU.

It keeps no state; delta_slots.py holds the rows that a stream's next piece needs of its past. Rows
are one stream's (``causal_conv``), or one of each stream (``causal_conv_each``).
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["causal_conv", "causal_conv_each"]


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


def causal_conv_each(rows: torch.Tensor, pasts: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Return what ``causal_conv`` does for ``n`` streams of one row each.

    Args:
        rows: ``[n, channels]``, a stream's row each.
        pasts: ``[n, K - 1, channels]``, overwritten as ``past`` is.
        taps: float32 ``[K, channels]``, oldest first.
    """
    seen = torch.cat((pasts, rows[:, None]), dim=1)
    wide = seen.float()
    mixed = torch.zeros_like(wide[:, 0])
    for tap in range(wide.shape[1]):
        mixed.addcmul_(wide[:, tap], taps[tap])
    pasts.copy_(seen[:, 1:])
    return functional.silu(mixed.to(rows.dtype))
