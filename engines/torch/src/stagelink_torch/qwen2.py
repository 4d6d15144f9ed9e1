"""Qwen2: the plain decoder layer, with biases on q, k and v.

attention.py reads the biases where the checkpoint has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.decoder import plain_layer

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

GRAPHS = INVARIANT = True


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:  # noqa: ARG001
    """Make a layer; every layer is the same."""
    return plain_layer(family, weights, setup)
