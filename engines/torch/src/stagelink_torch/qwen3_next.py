"""Qwen3-Next: linear and gated full attention, routed experts with a gated shared one beside them.

The parts are in hybrid.py, delta_net.py, gated_attention.py, shared_expert.py and experts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.decoder import DenseFeedForward
from stagelink_torch.delta_net import FLOAT32
from stagelink_torch.hybrid import FULL, hybrid_layer, shifted_ends
from stagelink_torch.mtp import MtpHead, check_layers, read_qwen_head
from stagelink_torch.shared_expert import routed_and_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

__all__ = ["FLOAT32", "GRAPHS", "INVARIANT", "make_ends", "make_layer", "read_head"]

GRAPHS = INVARIANT = True
make_ends = shifted_ends


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:
    """Make layer ``index``; its kind stands in the config."""
    return _layer(family, family.config["layer_types"][index], weights, setup)


def read_head(family: Family, at: Callable[[str], Weights], setup: Setup) -> MtpHead:
    """Read the checkpoint's MTP head; ``at`` reads names that begin with a prefix."""
    check_layers(family.config["mtp_num_hidden_layers"])

    def layer(family: Family, weights: Weights, setup: Setup) -> Layer:
        """Make the head's own layer."""
        return _layer(family, FULL, weights, setup)

    return read_qwen_head(family, at, setup, layer)


def _layer(family: Family, kind: str, weights: Weights, setup: Setup) -> Layer:
    """Return a layer of ``kind``; one without a router in the checkpoint is dense."""
    if not weights.has("mlp.gate.weight"):
        return hybrid_layer(family, kind, weights, setup, DenseFeedForward(weights, setup))
    normed = bool(family.config["norm_topk_prob"])
    mixed = routed_and_shared(family.config, weights, setup, normed=normed)
    return hybrid_layer(family, kind, weights, setup, mixed)
