"""Qwen3.5, dense: linear and gated full attention by ``layer_types``, and a plain feed-forward.

The parts are in hybrid.py, delta_net.py, gated_attention.py and mlp.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.decoder import DenseFeedForward
from stagelink_torch.delta_net import FLOAT32
from stagelink_torch.hybrid import hybrid_layer, shifted_ends

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

__all__ = ["FLOAT32", "INVARIANT", "make_ends", "make_layer"]

INVARIANT = True
make_ends = shifted_ends


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:
    """Make layer ``index``; its kind stands in the config."""
    kind = family.config["layer_types"][index]
    return hybrid_layer(family, kind, weights, setup, DenseFeedForward(weights))
