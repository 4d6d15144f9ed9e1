"""OLMo 2: norms after each block and none before, q and k normed over all heads at once.

The parts are in attention.py, norm.py, mlp.py and ends.py.
"""

from __future__ import annotations

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


class _AllHeadsNorm(RmsNorm):
    """One norm over all heads of a row; a head alone has no norm of its own."""

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Return normed heads ``[rows, heads, head_width]``."""
        return super().__call__(heads.flatten(1)).view(heads.shape)


class Olmo2Layer:
    """``x + norm(attention(x))``, then ``x + norm(feed_forward(x))``."""

    def __init__(self, family: Family, weights: Weights, setup: Setup) -> None:
        """Read a layer; every layer is the same. Norms and RoPE are float32 and round once."""
        epsilon = family.norm_epsilon

        def norm(name: str, kind: type[RmsNorm] = RmsNorm) -> RmsNorm:
            """Read a norm of this layer."""
            return kind(weights.read(name + ".weight"), epsilon, wide=True)

        shape = attention_shape(family.config)
        self._attention = Attention(
            shape,
            weights,
            setup,
            rope=config_rope(family.config, shape.head_width, setup, wide=True),
            norms=(
                norm("self_attn.q_norm", _AllHeadsNorm),
                norm("self_attn.k_norm", _AllHeadsNorm),
            ),
        )
        self._mlp = GatedMlp(weights, "mlp.", setup)
        names = "post_attention_layernorm", "post_feedforward_layernorm"
        self._norms = [norm(name) for name in names]

    def make_slots(self) -> KvSlots:
        """Allocate the layer's KV."""
        return self._attention.make_slots()

    def forward(self, rows: torch.Tensor, batch: Batch, slots: LayerSlots) -> torch.Tensor:
        """Return the rows after this layer."""
        after, after_ffn = self._norms
        rows += after(self._attention(rows, batch, slots))  # type: ignore[arg-type]
        rows += after_ffn(self._mlp(rows))
        return rows


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:  # noqa: ARG001
    """Make a layer; every layer is the same."""
    return Olmo2Layer(family, weights, setup)


def make_ends(family: Family, weights: Weights, setup: Setup) -> ModelEnds:
    """Make the ends; the final norm rounds once, as the layers' do."""
    return ModelEnds(family, weights, setup, wide=True)
