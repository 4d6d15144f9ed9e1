"""Full attention whose output passes a gate: the attention layers of Qwen3-Next and Qwen3.5.

It norms no row and adds no residual; the linear-attention layers are in delta_net.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink_torch.activations import activation_of
from stagelink_torch.attention import Attend
from stagelink_torch.decoder import attention_shape
from stagelink_torch.norm import RmsNorm
from stagelink_torch.rope import Rope

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stagelink_torch.kv import KvSlots
    from stagelink_torch.layer import Batch, Setup, Weights

__all__ = ["GatedAttention"]


class GatedAttention:
    """Grouped-query attention, heads normed with ``1 + w``, a part of each turned by RoPE.

    ``q_proj`` has two rows of heads for each query head: the query and the gate, whose sigmoid the
    attended values are multiplied with.
    """

    def __init__(
        self, config: Mapping[str, Any], weights: Weights, setup: Setup, epsilon: float
    ) -> None:
        """Read ``self_attn.*``, with biases where the checkpoint has them."""
        self._shape = shape = attention_shape(config)
        names = [f"self_attn.{part}_proj" for part in ("q", "k", "v")]
        self._qkv = weights.read(*[name + ".weight" for name in names])
        self._qkv_bias = None
        if weights.has(names[0] + ".bias"):
            self._qkv_bias = weights.read(*[name + ".bias" for name in names])
        self._out = weights.read("self_attn.o_proj.weight")
        bias = "self_attn.o_proj.bias"
        self._out_bias = weights.read(bias) if weights.has(bias) else None
        self._query_norm, self._key_norm = (
            RmsNorm(weights.read(f"self_attn.{one}_norm.weight"), epsilon, shifted=True)
            for one in ("q", "k")
        )
        rope = config["rope_parameters"]
        turned = int(shape.head_width * rope.get("partial_rotary_factor", 1.0))
        # The three position ids of a row (time, height, width) are equal for text, and then the
        # sections of the multimodal RoPE are one plain RoPE.
        self._rope = Rope(rope, turned, config["max_position_embeddings"], setup)
        self._attend = Attend(shape, setup)
        self._sigmoid = activation_of("sigmoid", alone=setup.invariant)

    def make_slots(self) -> KvSlots:
        """Allocate the layer's KV."""
        return self._attend.make_slots()

    def __call__(self, rows: torch.Tensor, batch: Batch, slots: KvSlots) -> torch.Tensor:
        """Return the change ``[rows, width]`` and put the rows' keys and values into the slots."""
        shape = self._shape
        both = functional.linear(rows, self._qkv, self._qkv_bias)
        both = both.view(len(rows), -1, shape.head_width)
        sizes = [2 * shape.heads, shape.kv_heads, shape.kv_heads]
        doubled, keys, values = torch.split(both, sizes, dim=1)
        queries, gate = doubled[:, 0::2], doubled[:, 1::2]
        normed = torch.cat((self._query_norm(queries), self._key_norm(keys)), dim=1)
        turned = self._rope.turn(normed, batch)
        queries, keys = torch.split(turned, [shape.heads, shape.kv_heads], dim=1)
        slots.put(keys, values, batch)
        attended = self._attend(queries, batch, slots)
        attended = attended * self._sigmoid(gate.reshape(len(rows), -1))
        return functional.linear(attended, self._out, self._out_bias)
