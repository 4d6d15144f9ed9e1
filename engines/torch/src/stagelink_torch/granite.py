"""Granite: the plain decoder's parts, with factors on embeddings, scores, residuals and logits.

The parts are in attention.py, norm.py, mlp.py and ends.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink_torch.attention import Attention
from stagelink_torch.decoder import attention_shape, config_rope
from stagelink_torch.ends import ModelEnds
from stagelink_torch.mlp import GatedMlp
from stagelink_torch.norm import RmsNorm

if TYPE_CHECKING:
    import torch

    from stagelink.engine import Family
    from stagelink_torch.kv import KvSlots
    from stagelink_torch.layer import Batch, Layer, LayerSlots, Setup, Weights

GRAPHS = INVARIANT = True


class GraniteLayer:
    """``x + f attention(norm(x))``, then ``x + f feed_forward(norm(x))``."""

    def __init__(self, family: Family, weights: Weights, setup: Setup) -> None:
        """Read a layer; every layer is the same."""
        config = family.config
        shape = dataclasses.replace(attention_shape(config), scale=config["attention_multiplier"])
        rope = config_rope(config, shape.head_width, setup)
        self._attention = Attention(shape, weights, setup, rope=rope)
        self._mlp = GatedMlp(weights, "mlp.", setup)
        self._factor: float = config["residual_multiplier"]
        names = "input_layernorm.weight", "post_attention_layernorm.weight"
        self._norms = [RmsNorm(weights.read(name), family.norm_epsilon) for name in names]

    def make_slots(self) -> KvSlots:
        """Allocate the layer's KV."""
        return self._attention.make_slots()

    def forward(self, rows: torch.Tensor, batch: Batch, slots: LayerSlots) -> torch.Tensor:
        """Return the rows after this layer."""
        before, before_ffn = self._norms
        # The factor is rounded by itself, as transformers does: no fused multiply and add.
        rows += self._attention(before(rows), batch, slots) * self._factor  # type: ignore[arg-type]
        rows += self._mlp(before_ffn(rows)) * self._factor
        return rows


class GraniteEnds(ModelEnds):
    """The usual ends, with a factor on embeddings and a divisor of logits."""

    def __init__(self, family: Family, weights: Weights, setup: Setup) -> None:
        """Read the ends' tensors."""
        super().__init__(family, weights, setup)
        self._factor: float = family.config["embedding_multiplier"]
        self._divisor: float = family.config["logits_scaling"]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return new rows ``[n, width]``."""
        return super().embed(token_ids) * self._factor

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Return logits ``[n, vocab]`` of rows after the final norm."""
        return super().logits(normed) / self._divisor


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:  # noqa: ARG001
    """Make a layer; every layer is the same."""
    return GraniteLayer(family, weights, setup)


def make_ends(family: Family, weights: Weights, setup: Setup) -> GraniteEnds:
    """Make the ends."""
    return GraniteEnds(family, weights, setup)
