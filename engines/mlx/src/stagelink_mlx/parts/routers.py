"""How expert families choose experts and share their work, as transformers computes it.

It knows no family's fields (``parts/experts.py`` does), and no expert: those are mlx_lm's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NormedBlock", "RoutedBlock", "Router", "Routing"]


@dataclasses.dataclass(frozen=True, slots=True)
class Routing:
    """The numbers of a choice of experts.

    Attributes:
        experts: How many there are.
        used: How many a row uses.
        groups: How many groups they come in.
        groups_used: How many groups a row's experts may come from.
        is_normed: Whether the shares of a row's experts are made to sum to 1.
        scale: What the shares are multiplied by.
        has_softmax: Whether a score is a softmax over all experts; else a sigmoid of its own.
        floor: The least sum that shares are divided by.
        addend: What is added to that sum.
        cap: What bounds raw scores by a tanh; 0 where nothing does.
        group_scores: A group is worth the sum of so many of its best.
        is_corrected: Whether each expert has a correction that only the choice sees.
    """

    experts: int
    used: int
    groups: int = 1
    groups_used: int = 1
    is_normed: bool = True
    scale: float = 1.0
    has_softmax: bool = False
    floor: float = 0.0
    addend: float = 1e-20
    cap: float = 0.0
    is_corrected: bool = True
    group_scores: int = 2


class Router(nn.Module):
    """A choice of experts by scores and a correction of each (arXiv 2412.19437, 2.1.2).

    mlx_lm's give experts outside the chosen groups the score 0, which is more than an expert with
    a low correction has inside them, and some leave the correction or the norm of a single share
    out. Scores are float32, whatever the rows are.
    """

    def __init__(self, routing: Routing, width: int) -> None:
        """Take the numbers; the weights are zeros until they are loaded.

        Args:
            routing: The numbers.
            width: Of a row.
        """
        super().__init__()
        self._routing = routing
        self.weight = mx.zeros((routing.experts, width))
        if routing.is_corrected:
            self.e_score_correction_bias = mx.zeros((routing.experts,))

    def __call__(self, rows: mx.array) -> tuple[mx.array, mx.array]:
        """Return the chosen experts ``[..., used]`` and their shares, float32."""
        routing = self._routing
        raw = rows.astype(mx.float32) @ self.weight.astype(mx.float32).T
        if routing.cap:
            raw = mx.tanh(raw / routing.cap) * routing.cap
        scores = mx.softmax(raw, axis=-1) if routing.has_softmax else mx.sigmoid(raw)
        correction = self.get("e_score_correction_bias")
        worth = self._inside(scores if correction is None else scores + correction)
        chosen = mx.argpartition(-worth, kth=routing.used - 1, axis=-1)[..., : routing.used]
        shares = mx.take_along_axis(scores, chosen, axis=-1)
        if routing.is_normed:
            total = shares.sum(axis=-1, keepdims=True) + routing.addend
            shares = shares / (mx.maximum(total, routing.floor) if routing.floor else total)
        return chosen, shares * routing.scale

    def _inside(self, worth: mx.array) -> mx.array:
        """Return ``worth`` with nothing left of experts whose group is not among the best."""
        groups = self._routing.groups
        lost = groups - self._routing.groups_used
        if lost == 0:
            return worth
        grouped = mx.unflatten(worth, axis=-1, shape=(groups, -1))
        best = mx.topk(grouped, self._routing.group_scores, axis=-1).sum(axis=-1, keepdims=True)
        out = mx.argpartition(best, kth=lost - 1, axis=-2)[..., :lost, :]
        return mx.put_along_axis(grouped, out, mx.array(-mx.inf), axis=-2).flatten(-2, -1)


class RoutedBlock(nn.Module):
    """A block of experts: those that a row chooses, and those that all rows share."""

    def __init__(
        self, gate: nn.Module, experts: nn.Module, shared: Callable[[mx.array], Any] | None
    ) -> None:
        """Take the parts, most of them from mlx_lm's block.

        Args:
            gate: Returns experts and shares of rows.
            experts: mlx_lm's ``SwitchGLU``.
            shared: What all rows use, where there is one.
        """
        super().__init__()
        self.gate, self.switch_mlp = gate, experts
        if shared is not None:
            self.shared_experts = shared

    def __call__(self, rows: mx.array) -> mx.array:
        """Return ``[..., width]`` of rows ``[..., width]``."""
        chosen, shares = self.gate(rows)
        parts = self.switch_mlp(rows, chosen)
        out: mx.array = (parts * shares[..., None]).sum(axis=-2).astype(parts.dtype)
        return out + self.shared_experts(rows) if "shared_experts" in self else out


class NormedBlock(nn.Module):
    """Qwen2's block of experts whose shares sum to 1, which mlx_lm's block does not know."""

    def __init__(self, made: Any) -> None:
        """Take the parts of mlx_lm's block."""
        super().__init__()
        self.gate, self.switch_mlp = made.gate, made.switch_mlp
        self.shared_expert, self.shared_expert_gate = made.shared_expert, made.shared_expert_gate
        self._used = made.top_k

    def __call__(self, rows: mx.array) -> mx.array:
        """Return ``[..., width]`` of rows ``[..., width]``."""
        scores = mx.softmax(self.gate(rows), axis=-1, precise=True)
        chosen = mx.argpartition(-scores, kth=self._used - 1, axis=-1)[..., : self._used]
        shares = mx.take_along_axis(scores, chosen, axis=-1)
        shares = shares / shares.sum(axis=-1, keepdims=True)
        parts = self.switch_mlp(rows, chosen)
        out: mx.array = (parts * shares[..., None]).sum(axis=-2)
        shared: mx.array = mx.sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
        return out + shared
