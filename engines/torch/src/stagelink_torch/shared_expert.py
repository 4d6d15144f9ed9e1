"""The feed-forward block of Qwen3-Next and Qwen3.5-MoE: routed experts and one that all rows pass.

It chooses and sums nothing itself (experts.py does); it adds the shared expert's gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

from stagelink_torch.experts import RoutedFeedForward, SoftmaxRouter, read_experts
from stagelink_torch.mlp import GatedMlp
from stagelink_torch.rowwise import sigmoid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import torch

    from stagelink_torch.layer import Setup, Weights

__all__ = ["SharedExpert", "routed_and_shared"]


class SharedExpert:
    """``sigmoid(w . x) * expert(x)`` for every row."""

    def __init__(self, weights: Weights, setup: Setup) -> None:
        """Read ``mlp.shared_expert.*`` and ``mlp.shared_expert_gate``."""
        self._expert = GatedMlp(weights, "mlp.shared_expert.", setup)
        self._gate = weights.read("mlp.shared_expert_gate.weight")

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``[rows, width]``."""
        return sigmoid(functional.linear(rows, self._gate)) * self._expert(rows)


def routed_and_shared(
    config: Mapping[str, Any], weights: Weights, setup: Setup, *, normed: bool
) -> RoutedFeedForward:
    """Read ``mlp.*`` by the config's numbers; ``normed``: the shares sum to one."""
    gate = weights.read("mlp.gate.weight")
    router = SoftmaxRouter(gate, config["num_experts_per_tok"], normed=normed)
    experts = read_experts(weights, "mlp.experts.", config["num_experts"], setup)
    return RoutedFeedForward(router, experts, SharedExpert(weights, setup))
