"""Qwen3.5-MoE: Qwen3.5's mixers; in every layer routed experts and a gated shared one.

The parts are in hybrid.py, delta_net.py, gated_attention.py, shared_expert.py and experts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Make layer ``index``; the shares of the chosen experts always sum to one."""
    kind = family.config["layer_types"][index]
    mixed = routed_and_shared(family.config, weights, setup, normed=True)
    return hybrid_layer(family, kind, weights, setup, mixed)
