"""Gemma 3: norms before and after each block, sliding and full layers with two RoPEs, GELU.

The parts are in attention.py, norm.py, mlp.py and ends.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink_torch.attention import Attention
from stagelink_torch.decoder import attention_shape
from stagelink_torch.ends import ModelEnds
from stagelink_torch.mlp import GatedMlp
from stagelink_torch.norm import RmsNorm
from stagelink_torch.rope import Rope

if TYPE_CHECKING:
    import torch

    from stagelink.engine import Family
    from stagelink_torch.kv import KvSlots
    from stagelink_torch.layer import Batch, Layer, LayerSlots, Setup, Weights

GRAPHS = INVARIANT = True

_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


class Gemma3Layer:
    """``x + norm(attention(norm(x)))``, then ``x + norm(feed_forward(norm(x)))``."""

    def __init__(self, family: Family, kind: str, weights: Weights, setup: Setup) -> None:
        """Read a layer of ``kind``, ``"sliding_attention"`` or ``"full_attention"``."""
        config, epsilon = family.config, family.norm_epsilon

        def norm(name: str) -> RmsNorm:
            """Read a norm of this layer; its factor is ``1 + weight``."""
            return RmsNorm(weights.read(name + ".weight"), epsilon, shifted=True)

        window = config["sliding_window"] if kind == "sliding_attention" else 0
        shape = attention_shape(config, window)
        scale = config["query_pre_attn_scalar"] ** -0.5
        limit = config["max_position_embeddings"]
        self._attention = Attention(
            dataclasses.replace(shape, scale=scale),
            weights,
            setup,
            rope=Rope(config["rope_parameters"][kind], shape.head_width, limit, setup),
            norms=(norm("self_attn.q_norm"), norm("self_attn.k_norm")),
        )
        self._mlp = GatedMlp(weights, "mlp.", setup, config["hidden_activation"])
        self._norms = [norm(name) for name in _NORMS]

    def make_slots(self) -> KvSlots:
        """Allocate the layer's KV."""
        return self._attention.make_slots()

    def forward(self, rows: torch.Tensor, batch: Batch, slots: LayerSlots) -> torch.Tensor:
        """Return the rows after this layer."""
        before, after, before_ffn, after_ffn = self._norms
        rows += after(self._attention(before(rows), batch, slots))  # type: ignore[arg-type]
        rows += after_ffn(self._mlp(before_ffn(rows)))
        return rows


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:
    """Make layer ``index`` of the model: its kind is ``layer_types``' by absolute number."""
    return Gemma3Layer(family, family.config["layer_types"][index], weights, setup)


def make_ends(family: Family, weights: Weights, setup: Setup) -> ModelEnds:
    """Make the ends: embeddings times the root of the width; a cap on logits where configured."""
    return ModelEnds(
        family,
        weights,
        setup,
        shifted=True,
        scale=family.width**0.5,
        cap=family.config.get("final_logit_softcapping"),
    )
