"""Qwen3-MoE: Qwen3's attention; routed experts, or a dense block by the layer's absolute number.

The parts are in decoder.py and experts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.decoder import plain_layer
from stagelink_torch.experts import RoutedFeedForward, SoftmaxRouter, read_experts

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

GRAPHS = INVARIANT = True


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:  # noqa: ARG001
    """Make a layer; one without a router in the checkpoint is dense."""
    return plain_layer(
        family,
        weights,
        setup,
        head_norms=True,
        feed_forward=routed(family, weights, setup) if weights.has("mlp.gate.weight") else None,
    )


def routed(family: Family, weights: Weights, setup: Setup) -> RoutedFeedForward:
    """Read ``mlp.gate`` and ``mlp.experts`` by the config's numbers."""
    config = family.config
    gate = weights.read("mlp.gate.weight")
    normed = bool(config["norm_topk_prob"])
    router = SoftmaxRouter(gate, config["num_experts_per_tok"], normed=normed)
    return RoutedFeedForward(
        router, read_experts(weights, "mlp.experts.", config["num_experts"], setup)
    )
