"""Activations by the names of configs: torch's own, or a form whose values have bits of their own.

It gates nothing. torch computes the values behind a tensor's last whole vector by another path, and
divides a large tensor among threads in the middle of a row: a value's bits then depend on how many
rows stand beside it. Its exp, tanh and erf take one path everywhere, and sums, products and
quotients are rounded once on any; what is made of those has one result (for batch-invariant mode).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink.engine import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    Activation = Callable[[torch.Tensor], torch.Tensor]

__all__ = ["Activation", "activation_of"]

_CUBIC = 0.044715


def activation_of(name: str, *, alone: bool = False) -> Activation:
    """Return the activation that configs call ``name``, of rows ``[..., values]``.

    Args:
        name: ``"silu"``, ``"gelu"``, ``"gelu_pytorch_tanh"`` or ``"sigmoid"``.
        alone: Whether a value's bits must be its own; computed in float32 and rounded once.

    Raises:
        ConfigError: ``activation`` for another name.
    """
    known = _ALONE if alone else _OWN
    if name not in known:
        raise ConfigError(
            f"torch engine: expected an activation of {', '.join(known)}, got {name!r}; "
            "use --engine transformers for this checkpoint",
            reason="activation",
        )
    return known[name]


def _gelu_tanh(rows: torch.Tensor) -> torch.Tensor:
    """Return the tanh form of GELU (Hendrycks and Gimpel 2016)."""
    return functional.gelu(rows, approximate="tanh")


def _sigmoid_alone(rows: torch.Tensor) -> torch.Tensor:
    """Return ``1 / (1 + e^-x)``."""
    return torch.exp(-rows.float()).add_(1.0).reciprocal_().to(rows.dtype)


def _silu_alone(rows: torch.Tensor) -> torch.Tensor:
    """Return ``x / (1 + e^-x)``."""
    wide = rows.float()
    return (wide / torch.exp(-wide).add_(1.0)).to(rows.dtype)


def _gelu_alone(rows: torch.Tensor) -> torch.Tensor:
    """Return ``x / 2 * (1 + erf(x / sqrt(2)))``."""
    wide = rows.float()
    return (torch.erf(wide * math.sqrt(0.5)).add_(1.0) * (wide * 0.5)).to(rows.dtype)


def _gelu_tanh_alone(rows: torch.Tensor) -> torch.Tensor:
    """Return ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))``."""
    wide = rows.float()
    inner = (wide + wide * wide * wide * _CUBIC) * math.sqrt(2 / math.pi)
    return (torch.tanh(inner).add_(1.0) * (wide * 0.5)).to(rows.dtype)


_OWN: dict[str, Activation] = {
    "silu": functional.silu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu": functional.gelu,
    "sigmoid": torch.sigmoid,
}
_ALONE: dict[str, Activation] = {
    "silu": _silu_alone,
    "gelu_pytorch_tanh": _gelu_tanh_alone,
    "gelu": _gelu_alone,
    "sigmoid": _sigmoid_alone,
}
