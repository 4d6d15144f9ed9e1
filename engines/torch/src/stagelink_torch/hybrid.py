"""The decoder layer of Qwen3-Next and Qwen3.5: linear or gated full attention, by the layer's type.

It reads no feed-forward block; the families' files choose one. Norms multiply by ``1 + weight``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.decoder import DecoderLayer
from stagelink_torch.delta_net import DeltaNet
from stagelink_torch.ends import ModelEnds
from stagelink_torch.gated_attention import GatedAttention
from stagelink_torch.norm import RmsNorm

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.decoder import FeedForward
    from stagelink_torch.layer import Setup, Weights

__all__ = ["FULL", "LINEAR", "hybrid_layer", "shifted_ends"]

FULL, LINEAR = "full_attention", "linear_attention"


def hybrid_layer(
    family: Family,
    kind: str,
    weights: Weights,
    setup: Setup,
    feed_forward: FeedForward,
) -> DecoderLayer:
    """Make a layer of ``kind``, ``FULL`` or ``LINEAR``."""
    mixer_class = DeltaNet if kind == LINEAR else GatedAttention
    mixer = mixer_class(family.config, weights, setup, family.norm_epsilon)
    before, after = (
        RmsNorm(weights.read(f"{name}.weight"), family.norm_epsilon, shifted=True)
        for name in ("input_layernorm", "post_attention_layernorm")
    )
    return DecoderLayer((before, after), mixer, feed_forward)


def shifted_ends(family: Family, weights: Weights, setup: Setup) -> ModelEnds:
    """Make the ends: a final norm with ``1 + weight``."""
    return ModelEnds(family, weights, setup, shifted=True)
