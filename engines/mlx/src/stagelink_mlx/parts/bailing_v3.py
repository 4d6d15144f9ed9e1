"""What Ling 3's layers need of mlx_lm's: another choice of experts, epsilons, bounds of experts.

It reads no weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.configs.bailing_v3 import BAILING_V3_LIMITS
from stagelink_mlx.library import models_module
from stagelink_mlx.parts.norms import correct_latent_norms
from stagelink_mlx.parts.rope import softmax_factor
from stagelink_mlx.parts.routers import RoutedBlock, Router, Routing

if TYPE_CHECKING:
    from stagelink.engine import Family

__all__ = ["bailing_v3_arguments", "correct_bailing_v3"]


def bailing_v3_arguments(family: Family) -> dict[str, Any]:
    """Return arguments without which mlx_lm builds nothing; what they mean is corrected."""
    del family
    return {"kda_safe_gate": True, "rope_interleave": True, "rope_scaling": None}


def correct_bailing_v3(layer: Any, family: Family, n: int) -> None:
    """Correct a layer in place."""
    config, attention = family.config, layer.attention
    if layer.is_linear:
        if not config["kda_safe_gate"]:
            attention.lower_bound = None
    else:
        correct_latent_norms(attention)
        attention.scale *= softmax_factor(config["rope_parameters"])
    if "switch_mlp" not in layer.mlp:
        return
    routing = Routing(
        config["num_experts"],
        config["num_experts_per_tok"],
        config["n_group"],
        config["topk_group"],
        config["norm_topk_prob"],
        config["routed_scaling_factor"],
    )
    block = layer.mlp
    routed, shared = ((config[key] or [0.0] * family.layers)[n] for key in BAILING_V3_LIMITS)
    if routed:
        block.switch_mlp.activation = models_module("step3p5").ClampedSwiGLU(routed)
    every = _Bounded(block.shared_experts, shared) if shared else block.shared_experts
    layer.mlp = RoutedBlock(Router(routing, family.width), block.switch_mlp, every)


class _Bounded(nn.Module):
    """A feed-forward block whose two factors are bounded, the activated one from above only."""

    def __init__(self, block: Any, limit: float) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = block.gate_proj, block.up_proj
        self.down_proj = block.down_proj
        self._activation = models_module("step3p5").ClampedSwiGLU(limit)

    def __call__(self, rows: mx.array) -> mx.array:
        out: mx.array = self.down_proj(self._activation(self.up_proj(rows), self.gate_proj(rows)))
        return out
