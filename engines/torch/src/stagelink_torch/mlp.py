"""The feed-forward block of dense layers: gate, up and down, gate and up as one product.

It norms nothing and adds no residual; a family's layer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

from stagelink.engine import ConfigError
from stagelink_torch.product import Matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from stagelink_torch.layer import Setup, Weights

    Activation = Callable[[torch.Tensor], torch.Tensor]


class GatedMlp:
    """``down(activation(gate(x)) * up(x))``; Shazeer 2020, "GLU Variants Improve Transformer"."""

    def __init__(
        self, weights: Weights, prefix: str, setup: Setup, activation: str = "silu"
    ) -> None:
        """Read ``prefix + gate_proj, up_proj, down_proj``."""
        self._activate = activation_of(activation)
        gate_up = weights.read(prefix + "gate_proj.weight", prefix + "up_proj.weight")
        self._gate_up = Matrix(gate_up, setup)
        self._down = Matrix(weights.read(prefix + "down_proj.weight"), setup)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``[rows, width]`` in memory of its own."""
        gate, up = self._gate_up(rows).chunk(2, dim=-1)
        return self._down(self._activate(gate).mul_(up))


def activation_of(name: str) -> Activation:
    """Return the activation that configs call ``name``."""
    if name not in _ACTIVATIONS:
        raise ConfigError(
            f"torch engine: expected an activation of {', '.join(_ACTIVATIONS)}, got {name!r}; "
            "use --engine transformers for this checkpoint",
            reason="activation",
        )
    return _ACTIVATIONS[name]


def _gelu_tanh(rows: torch.Tensor) -> torch.Tensor:
    """Return the tanh form of GELU (Hendrycks and Gimpel 2016)."""
    return functional.gelu(rows, approximate="tanh")


_ACTIVATIONS: dict[str, Activation] = {
    "silu": functional.silu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu": functional.gelu,
}
