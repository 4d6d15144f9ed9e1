"""The short causal convolution before a recurrence: each channel by itself, then SiLU.

It keeps no state; delta_slots.py holds the rows that a stream's next piece needs of its past. Rows
are one stream's (``causal_conv``), or one of each stream (``causal_conv_each``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from stagelink_torch.activations import activation_of

if TYPE_CHECKING:
    from stagelink_torch.activations import Activation

__all__ = ["causal_conv", "causal_conv_each"]

SILU: Final = activation_of("silu")


def causal_conv(
    rows: torch.Tensor, past: torch.Tensor, taps: torch.Tensor, activate: Activation = SILU
) -> torch.Tensor:
    """Return ``silu(sum_j taps[j] * x[t - (K - 1) + j])`` of every row, in the dtype of ``rows``.

    ``past`` is overwritten with what the next call needs: the last ``K - 1`` rows seen. The taps
    are added oldest first, one after the other, each sum rounded once (as torch's own convolution
    does on a CPU), so a row's bits do not depend on how many rows stand beside it.

    Args:
        rows: ``[n, channels]`` in the compute dtype.
        past: ``[K - 1, channels]``, the rows before the first one; zeros at position 0.
        taps: float32 ``[K, channels]``, oldest first.
        activate: The form of SiLU.
    """
    count, behind = rows.shape[0], past.shape[0]
    seen = torch.cat((past, rows))
    wide = seen.float()
    mixed = torch.zeros_like(wide[:count])
    for tap in range(behind + 1):
        mixed.addcmul_(wide[tap : tap + count], taps[tap])
    past.copy_(seen[count:])
    return activate(mixed.to(rows.dtype))


def causal_conv_each(
    rows: torch.Tensor, pasts: torch.Tensor, taps: torch.Tensor, activate: Activation = SILU
) -> torch.Tensor:
    """Return what ``causal_conv`` does for ``n`` streams of one row each.

    Args:
        rows: ``[n, channels]``, a stream's row each.
        pasts: ``[n, K - 1, channels]``, overwritten as ``past`` is.
        taps: float32 ``[K, channels]``, oldest first.
        activate: The form of SiLU.
    """
    seen = torch.cat((pasts, rows[:, None]), dim=1)
    wide = seen.float()
    mixed = torch.zeros_like(wide[:, 0])
    for tap in range(wide.shape[1]):
        mixed.addcmul_(wide[:, tap], taps[tap])
    pasts.copy_(seen[:, 1:])
    return activate(mixed.to(rows.dtype))
