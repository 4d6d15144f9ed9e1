"""The feed-forward block of dense layers: gate, up and down; few rows pass gate and up as one.

It norms nothing and adds no residual; a family's layer does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.activations import activation_of
from stagelink_torch.product import Matrix

if TYPE_CHECKING:
    import torch

    from stagelink_torch.layer import Setup, Weights


# From here on two products cost no more than one, and their results lie together.
MANY_ROWS = 32


class GatedMlp:
    """``down(activation(gate(x)) * up(x))``; Shazeer 2020, "GLU Variants Improve Transformer"."""

    def __init__(
        self, weights: Weights, prefix: str, setup: Setup, activation: str = "silu"
    ) -> None:
        """Read ``prefix + gate_proj, up_proj, down_proj``."""
        self._activate = activation_of(activation, alone=setup.invariant)
        gate_up = weights.read(prefix + "gate_proj.weight", prefix + "up_proj.weight")
        self._gate_up = Matrix(gate_up, setup)
        self._apart: tuple[Matrix, ...] = ()
        if setup.device.type == "cpu" and not setup.invariant:
            self._apart = tuple(Matrix(half, setup) for half in gate_up.chunk(2))
        self._down = Matrix(weights.read(prefix + "down_proj.weight"), setup)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``[rows, width]`` in memory of its own."""
        if self._apart and len(rows) >= MANY_ROWS:
            gate, up = (half(rows) for half in self._apart)
        else:
            gate, up = self._gate_up(rows).chunk(2, dim=-1)
        return self._down(self._activate(gate).mul_(up))
