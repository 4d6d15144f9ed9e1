"""Llama, Qwen2 and Qwen3: RMSNorm, grouped-query attention over all positions, RoPE, SwiGLU.

It computes nothing. Source of the fields: the configs of the three in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.families.blocks import attention_shapes, gated_shapes, norm_shapes
from stagelink.checkpoint.families.config_reading import (
    common_arguments,
    finish,
    take_heads,
    take_layer_types,
    take_sizes,
)
from stagelink.checkpoint.families.grouped import GroupedFamily, grouped_arguments
from stagelink.checkpoint.limits import WIDTH_MAX
from stagelink.checkpoint.rope import Rope, take_rope

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.fields import Fields

# The first llama configs say no theta and mean this one; the others always say it.
_LLAMA_THETA = 10000.0
_QWEN3_HEAD_WIDTH = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaFamily(GroupedFamily):
    """A plain decoder: ``"llama"``, ``"qwen2"`` or ``"qwen3"``.

    Attributes:
        ffn_width: Values between gate/up and down.
        rope: How positions become angles.
        qkv_bias: Whether q, k and v projections add a bias.
        qk_norm: Whether every q and k head passes an RMSNorm before RoPE.
    """

    ffn_width: int
    rope: Rope
    qkv_bias: bool
    qk_norm: bool

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors; every layer has the same."""
        del n
        return (
            norm_shapes(self.width, "input_layernorm", "post_attention_layernorm")
            | attention_shapes(
                self.width,
                self.query_values,
                self.key_values,
                biases=("q", "k", "v") if self.qkv_bias else (),
                norm=self.head_width if self.qk_norm else 0,
            )
            | gated_shapes(self.width, self.ffn_width)
        )


def read_llama(source: Source, model_type: str) -> LlamaFamily:
    """Read the config of one of the three.

    Raises:
        CheckpointError: ``config_field``, ``activation``, ``rope_scaling``, ``sliding_window`` or
            ``quantization``.
    """
    fields = source.fields
    config = take_sizes(fields, model_type)
    # Qwen2 has q, k and v biases without saying so; elsewhere a bias is said, and not implemented.
    fields.only("attention_bias", model_type == "qwen2")
    config["layer_types"] = _take_attention_kinds(fields, model_type, config["num_hidden_layers"])
    qwen3 = model_type == "qwen3"
    take_heads(
        fields,
        config,
        kv_heads=0 if model_type == "llama" else None,
        default=_QWEN3_HEAD_WIDTH if qwen3 else 0,
    )
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    theta = _LLAMA_THETA if model_type == "llama" else None
    rope = take_rope(fields, theta, config["max_position_embeddings"])
    config["rope_parameters"] = rope.parameters()
    common = common_arguments(config, source)
    finish(fields)
    return LlamaFamily(
        **common,
        **grouped_arguments(config),
        ffn_width=config["intermediate_size"],
        rope=rope,
        qkv_bias=model_type == "qwen2",
        qk_norm=qwen3,
    )


def _take_attention_kinds(fields: Fields, model_type: str, layers: int) -> list[Any]:
    whole = ["full_attention"] * layers
    kinds = take_layer_types(fields, layers, ("full_attention",), whole)
    window = fields.raw("sliding_window")
    if fields.flag("use_sliding_window", default=False):
        raise fields.refusal("use_sliding_window", "false", True, reason="sliding_window")
    # The Qwen families name a window and leave it off; elsewhere a window that is named is meant.
    if window is not None and model_type == "llama":
        raise fields.refusal("sliding_window", "no sliding window", window, reason="sliding_window")
    return kinds
