"""What only the lead holds: the embedding, the final norm and the head, tied or not.

Families whose ends differ (a scale on the embedding, a cap on the logits) say so here by argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink_torch.norm import RmsNorm
from stagelink_torch.product import Matrix

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.layer import Setup, Weights

HEAD = "lm_head.weight"


class ModelEnds:
    """``embed`` and ``head`` of a decoder; a tied matrix is held once."""

    def __init__(
        self,
        family: Family,
        weights: Weights,
        setup: Setup,
        *,
        shifted: bool = False,
        wide: bool = False,
        scale: float | None = None,
        cap: float | None = None,
    ) -> None:
        """Read the ends' tensors by the checkpoint's own names.

        Args:
            family: Names, and whether the head is tied.
            weights: Stands at the model.
            setup: The compute dtype.
            shifted: Whether the final norm's factor is ``1 + weight``.
            wide: Whether the final norm rounds once.
            scale: Factor on every embedding, rounded to the compute dtype.
            cap: Bound that logits are bent to: ``cap * tanh(logit / cap)``.
        """
        self._embed = weights.read(family.embed_name)
        norm = weights.read(f"{family.prefix}norm.weight")
        self._norm = RmsNorm(norm, family.norm_epsilon, shifted=shifted, wide=wide)
        self._head = Matrix(self._embed if family.tied else weights.read(HEAD), setup)
        self._scale = None
        if scale is not None:
            self._scale = torch.tensor(scale, dtype=setup.dtype, device=setup.device)
        self._cap = cap

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return new rows ``[n, width]``."""
        rows = functional.embedding(token_ids, self._embed)
        return rows if self._scale is None else rows * self._scale

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits ``[n, vocab]`` of the last layer's rows."""
        return self.logits(self.norm(rows))

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the last layer's rows after the final norm."""
        return self._norm(rows)

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Return logits ``[n, vocab]`` of rows after the final norm."""
        logits = self._head(normed)
        return logits if self._cap is None else torch.tanh(logits / self._cap) * self._cap


def make_ends(family: Family, weights: Weights, setup: Setup) -> ModelEnds:
    """Make the ends of a family that says nothing else."""
    return ModelEnds(family, weights, setup)
