"""Mixtral: the plain decoder layer with routed experts in the place of the feed-forward block.

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

_BLOCK = "block_sparse_moe."


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:  # noqa: ARG001
    """Make a layer; every layer is the same. The files call gate, up and down w1, w3 and w2."""
    config = family.config
    gate = weights.read(_BLOCK + "gate.weight")
    router = SoftmaxRouter(gate, config["num_experts_per_tok"], normed=True, wide=True)
    count = config["num_local_experts"]
    experts = read_experts(weights, _BLOCK + "experts.", count, setup, ("w1", "w3", "w2"))
    return plain_layer(family, weights, setup, feed_forward=RoutedFeedForward(router, experts))
