"""LongCat-Flash's choice of experts, some of which hand a row on as it is (arXiv 2509.01322, 2.1).

It keeps no state. The scores are float32, as transformers has them, and mlx_lm's are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.parts.norms import correct_latent_norms
from stagelink_mlx.parts.routers import Router, Routing

if TYPE_CHECKING:
    from stagelink.engine import Family

__all__ = ["correct_longcat"]


def correct_longcat(layer: Any, family: Family, n: int) -> None:
    """Give a layer's experts their choice, and its latent norms the epsilon of transformers."""
    del n
    config = family.config
    for attention in layer.self_attn:
        correct_latent_norms(attention)
    routing = Routing(
        config["n_routed_experts"] + config["zero_expert_num"],
        config["moe_topk"],
        is_normed=False,
        scale=config["routed_scaling_factor"],
        has_softmax=True,
    )
    router = Router(routing, family.width)
    layer.mlp = _IdleExperts(router, layer.mlp.switch_mlp, config["n_routed_experts"])


class _IdleExperts(nn.Module):
    """Experts, and behind them those that do nothing: a row's share of these is the row itself."""

    def __init__(self, router: nn.Module, experts: nn.Module, count: int) -> None:
        """Take the choice, mlx_lm's ``SwitchGLU``, and how many experts work."""
        super().__init__()
        self.router, self.switch_mlp = router, experts
        self._count = count

    def __call__(self, rows: mx.array) -> mx.array:
        """Return ``[..., width]`` of rows ``[..., width]``."""
        chosen, shares = self.router(rows)
        works = chosen < self._count
        parts = self.switch_mlp(rows, mx.where(works, chosen, 0))
        out = (parts * mx.where(works, shares, 0.0)[..., None]).sum(axis=-2)
        idle = mx.where(works, 0.0, shares).sum(axis=-1, keepdims=True)
        found: mx.array = (out + rows * idle).astype(rows.dtype)
        return found
