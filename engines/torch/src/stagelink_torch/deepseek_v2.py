"""DeepSeek-V2: latent attention; the first layers dense, the others routed with shared experts.

The parts are in deepseek_layer.py, latent.py, deepseek_router.py and experts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.deepseek_layer import check, latent_layer
from stagelink_torch.deepseek_router import FLOAT32, SoftmaxRouter

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

__all__ = ["FLOAT32", "GRAPHS", "INVARIANT", "check", "make_layer"]

GRAPHS = INVARIANT = True


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:  # noqa: ARG001
    """Make a layer; whether it is dense, the checkpoint's own tensors say."""
    return latent_layer(family, weights, setup, SoftmaxRouter)
