"""DeepSeek-V3: latent attention; the first layers dense, the others routed with shared experts.

The parts are in deepseek_layer.py, latent.py, deepseek_router.py and experts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.deepseek_layer import check, latent_layer
from stagelink_torch.deepseek_router import FLOAT32, SigmoidRouter
from stagelink_torch.mtp import MtpHead, check_layers, read_deepseek_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

__all__ = ["FLOAT32", "GRAPHS", "INVARIANT", "check", "make_layer", "read_head"]

GRAPHS = INVARIANT = True


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:  # noqa: ARG001
    """Make a layer; whether it is dense, the checkpoint's own tensors say."""
    return latent_layer(family, weights, setup, SigmoidRouter)


def read_head(family: Family, at: Callable[[str], Weights], setup: Setup) -> MtpHead:
    """Read the checkpoint's MTP head; ``at`` reads names that begin with a prefix."""
    check_layers(family.config["num_nextn_predict_layers"])

    def layer(family: Family, weights: Weights, setup: Setup) -> Layer:
        """Make the head's own layer."""
        return latent_layer(family, weights, setup, SigmoidRouter)

    return read_deepseek_head(family, at, setup, layer)
