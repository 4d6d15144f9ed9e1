"""Qwen3: the plain decoder layer, with a norm on every query and key head.

The parts are in decoder.py, attention.py, rope.py, norm.py and mlp.py.
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
    return plain_layer(family, weights, setup, head_norms=True)
