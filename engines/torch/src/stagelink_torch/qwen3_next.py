"""Qwen3-Next: linear and gated full attention, routed experts with a gated shared one beside them.

The parts are in hybrid.py, delta_net.py, gated_attention.py, shared_expert.py and experts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.decoder import DenseFeedForward
from stagelink_torch.delta_net import FLOAT32
from stagelink_torch.hybrid import hybrid_layer, shifted_ends
from stagelink_torch.shared_expert import routed_and_shared

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

__all__ = ["FLOAT32", "INVARIANT", "make_ends", "make_layer"]

INVARIANT = True
make_ends = shifted_ends


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:
    """Make layer ``index``; one without a router in the checkpoint is dense."""
    kind = family.config["layer_types"][index]
    if not weights.has("mlp.gate.weight"):
        return hybrid_layer(family, kind, weights, setup, DenseFeedForward(weights))
    normed = bool(family.config.get("norm_topk_prob", True))
    mixed = routed_and_shared(family.config, weights, setup, normed=normed)
    return hybrid_layer(family, kind, weights, setup, mixed)
