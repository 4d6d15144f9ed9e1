"""The plain decoder layer: norm, attention, residual, norm, feed-forward, residual.

A family's file puts its parts in; what is no such layer is in the family's own file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from stagelink_torch.attention import Attention, AttentionShape
from stagelink_torch.mlp import GatedMlp
from stagelink_torch.norm import RmsNorm
from stagelink_torch.rope import Rope

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from stagelink.engine import Family
    from stagelink_torch.layer import Batch, LayerSlots, Setup, Weights


class FeedForward(Protocol):
    """Rows to the change of the residual; those after the batch's last piece are padding."""

    def __call__(self, rows: torch.Tensor, batch: Batch, /) -> torch.Tensor:
        """Return ``[rows, width]`` in memory of its own."""
        ...


class Mixer(Protocol):
    """What mixes a stream's rows: an ``Attention``, or what a family has in its place."""

    def make_slots(self) -> LayerSlots:
        """Allocate what it keeps of every stream."""
        ...

    def __call__(self, rows: torch.Tensor, batch: Batch, slots: Any, /) -> torch.Tensor:
        """Return the change ``[rows, width]``; ``slots`` are of its own ``make_slots``."""
        ...


class DecoderLayer:
    """``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``."""

    def __init__(
        self,
        norms: tuple[RmsNorm, RmsNorm],
        attention: Mixer,
        feed_forward: FeedForward,
    ) -> None:
        """Take the parts; ``norms`` in the order of their use."""
        self._norms = norms
        self._attention = attention
        self._feed_forward = feed_forward

    def make_slots(self) -> LayerSlots:
        """Allocate what the layer keeps of every stream."""
        return self._attention.make_slots()

    def forward(self, rows: torch.Tensor, batch: Batch, slots: LayerSlots) -> torch.Tensor:
        """Return the rows after this layer."""
        rows += self._attention(self._norms[0](rows), batch, slots)
        rows += self._feed_forward(self._norms[1](rows), batch)
        return rows


class DenseFeedForward:
    """A ``GatedMlp`` in the place of a feed-forward block."""

    def __init__(self, weights: Weights, setup: Setup, activation: str = "silu") -> None:
        """Read ``mlp.{gate,up,down}_proj``."""
        self._mlp = GatedMlp(weights, "mlp.", setup, activation)

    def __call__(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:  # noqa: ARG002
        """Return the change; padding is computed like any row."""
        return self._mlp(rows)


def attention_shape(config: Mapping[str, Any], window: int = 0) -> AttentionShape:
    """Return the attention that a config of transformers 5 names."""
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    return AttentionShape(heads, config["num_key_value_heads"], width, width**-0.5, window)


def config_rope(config: Mapping[str, Any], width: int, setup: Setup, *, wide: bool = False) -> Rope:
    """Return the one RoPE of a config, for heads of ``width`` values; ``wide`` is `Rope`'s."""
    limit = config["max_position_embeddings"]
    return Rope(config["rope_parameters"], width, limit, setup, wide=wide)


def plain_layer(
    family: Family,
    weights: Weights,
    setup: Setup,
    *,
    head_norms: bool = False,
    rope: bool = True,
    window: int = 0,
    feed_forward: FeedForward | None = None,
) -> DecoderLayer:
    """Return a layer of the Llama kind.

    Args:
        family: Its ``config`` has the numbers.
        weights: Stands at the layer.
        setup: Device, dtypes, slots.
        head_norms: Whether query and key heads are normed.
        rope: Whether this layer turns them.
        window: Positions that a row sees; 0 for all.
        feed_forward: Another block than the dense one.
    """
    epsilon = family.norm_epsilon

    def norm(name: str) -> RmsNorm:
        """Read a norm of this layer."""
        return RmsNorm(weights.read(name + ".weight"), epsilon)

    shape = attention_shape(family.config, window)
    attention = Attention(
        shape,
        weights,
        setup,
        rope=config_rope(family.config, shape.head_width, setup) if rope else None,
        norms=(norm("self_attn.q_norm"), norm("self_attn.k_norm")) if head_norms else None,
    )
    norms = norm("input_layernorm"), norm("post_attention_layernorm")
    return DecoderLayer(norms, attention, feed_forward or DenseFeedForward(weights, setup))
