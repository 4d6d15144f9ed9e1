"""Says which rows of a stream are calls of their own: where the library's two paths differ.

It runs nothing; streams.py makes the calls.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

# Longer than a usual verify; what is longer is a part of a prompt.
VERIFY_ROWS: Final = 16
# The first kind of Mamba: the library's scan of several rows begins without a state, wherever
# they stand, and only its step of a single row goes on.
_BEGIN_ANEW: Final = ("mamba", "falcon_mamba", "jamba", "zamba")
_EVERY: Final = 1 << 30


def rows_alone(model_type: str, modules: Iterable[nn.Module]) -> int:
    """Return up to how many rows behind others are calls of their own; 0 where none need be.

    Args:
        model_type: The model's.
        modules: Those of all layers, the own and others', since all stages must do the same.
    """
    if model_type in _BEGIN_ANEW:
        return _EVERY
    return VERIFY_ROWS if any(_is_clamped(one) for one in modules) else 0


def _is_clamped(module: nn.Module) -> bool:
    """Say whether a mixer bounds its time steps, which the library forgets for a single row."""
    limit = getattr(module, "time_step_limit", None)
    return limit is not None and (limit[0] > 0 or limit[1] < math.inf)
