"""Which experts a DeepSeek row goes to, and with what weight: top-k inside the best groups.

It runs no expert. DeepSeek-V2 (arXiv 2405.04434, 2.2.2) chooses by softmax, DeepSeek-V3 (arXiv
2412.19437, 2.1.2) by sigmoid plus a bias that balances load and is no part of the weight.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink.engine import ConfigError
from stagelink_torch.activations import activation_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stagelink_torch.layer import Weights

__all__ = ["FLOAT32", "SigmoidRouter", "SoftmaxRouter"]

# The router is float32 in the reference, whatever the compute dtype is.
FLOAT32 = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias")
# A group is worth its best scores: as many as this for V3, the best one for V2.
_GROUP_SCORES = 2
_SUM_EPSILON = 1e-20
_METHODS = ("greedy", "group_limited_greedy")


@dataclasses.dataclass(frozen=True, slots=True)
class _Choice:
    """How many experts a row gets, out of how many of the groups."""

    experts: int
    groups: int
    groups_kept: int
    scale: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _Choice:
        """Read a DeepSeek config as transformers 5 spells it."""
        return cls(
            experts=config["num_experts_per_tok"],
            groups=config.get("n_group") or 1,
            groups_kept=config.get("topk_group") or 1,
            scale=config["routed_scaling_factor"],
        )

    def outside(self, worth: torch.Tensor, experts: int) -> torch.Tensor:
        """Return bool ``[rows, experts]``: whose group is not kept, by ``worth [rows, groups]``."""
        kept = worth.topk(self.groups_kept, dim=1)[1]
        lost = torch.ones_like(worth, dtype=torch.bool).scatter_(1, kept, value=False)
        return lost.repeat_interleave(experts // self.groups, dim=1)


class SoftmaxRouter:
    """DeepSeek-V2's: weights are probabilities over all experts, not made to sum to one."""

    def __init__(self, config: Mapping[str, Any], weights: Weights) -> None:
        """Read ``mlp.gate.weight``.

        Raises:
            ConfigError: ``config_value`` for a ``topk_method`` without a formula here.
        """
        method = config.get("topk_method") or "greedy"
        if method not in _METHODS:
            raise ConfigError(
                f"torch engine: expected topk_method {' or '.join(_METHODS)}, got {method!r}; "
                "use --engine transformers for this checkpoint",
                reason="config_value",
            )
        self._grouped = method == "group_limited_greedy"
        self._choice = _Choice.of(config)
        self._gate = weights.read("mlp.gate.weight", dtype=torch.float32)

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 weights and expert indices, ``[rows, k]`` each."""
        choice = self._choice
        scores = functional.linear(rows.float(), self._gate).softmax(dim=1)
        if self._grouped:
            worth = scores.view(len(scores), choice.groups, -1).amax(dim=2)
            outside = choice.outside(worth, scores.shape[1])
            scores = scores.masked_fill(outside, 0.0)
        weights, chosen = scores.topk(choice.experts, dim=1)
        return weights * choice.scale, chosen


class SigmoidRouter:
    """DeepSeek-V3's: chosen by score and bias, weighed by score."""

    def __init__(self, config: Mapping[str, Any], weights: Weights) -> None:
        """Read ``mlp.gate.weight`` and ``mlp.gate.e_score_correction_bias``."""
        self._choice = _Choice.of(config)
        self._sum_to_one = bool(config.get("norm_topk_prob", True))
        self._gate = weights.read("mlp.gate.weight", dtype=torch.float32)
        self._bias = weights.read("mlp.gate.e_score_correction_bias", dtype=torch.float32)
        self._sigmoid = activation_of("sigmoid", alone=True)

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 weights and expert indices, ``[rows, k]`` each."""
        choice = self._choice
        scores = self._sigmoid(functional.linear(rows.float(), self._gate))
        worth = scores + self._bias
        best = worth.view(len(worth), choice.groups, -1).topk(_GROUP_SCORES, dim=2)[0].sum(dim=2)
        worth = worth.masked_fill(choice.outside(best, scores.shape[1]), float("-inf"))
        chosen = worth.topk(choice.experts, dim=1)[1]
        weights = scores.gather(1, chosen)
        if self._sum_to_one:
            weights = weights / (weights.sum(dim=1, keepdim=True) + _SUM_EPSILON)
        return weights * choice.scale, chosen
