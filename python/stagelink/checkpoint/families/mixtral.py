"""Mixtral: grouped-query attention and routed experts in every layer.

It computes nothing. Source: MixtralConfig in transformers 5; the tensor names are the files' own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from stagelink.checkpoint.families.blocks import attention_shapes, norm_shapes
from stagelink.checkpoint.families.config_reading import (
    common_arguments,
    finish,
    take_expert_counts,
    take_heads,
    take_layer_types,
    take_rotation,
    take_sizes,
)
from stagelink.checkpoint.families.grouped import GroupedFamily, grouped_arguments
from stagelink.checkpoint.limits import WIDTH_MAX

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source

_THETA: Final = 1000000.0
_KV_HEADS: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtralFamily(GroupedFamily):
    """``"mixtral"``: softmax over the chosen experts' logits.

    Attributes:
        experts: Routed experts of a layer.
        experts_used: Experts that a row passes.
        expert_width: Values between an expert's w1/w3 and w2.
    """

    experts: int
    experts_used: int
    expert_width: int

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors: w1 is the gate, w3 the up and w2 the down projection."""
        del n
        width, inner = self.width, self.expert_width
        shapes = norm_shapes(width, "input_layernorm", "post_attention_layernorm")
        shapes |= attention_shapes(width, self.query_values, self.key_values)
        shapes["block_sparse_moe.gate.weight"] = (self.experts, width)
        for expert in range(self.experts):
            at = f"block_sparse_moe.experts.{expert}"
            shapes[f"{at}.w1.weight"] = (inner, width)
            shapes[f"{at}.w2.weight"] = (width, inner)
            shapes[f"{at}.w3.weight"] = (inner, width)
        return shapes


def read_mixtral(source: Source, model_type: str) -> MixtralFamily:
    """Read a Mixtral config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    config = take_sizes(fields, model_type)
    take_heads(fields, config, kv_heads=_KV_HEADS)
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    take_expert_counts(fields, config, "num_local_experts")
    take_rotation(fields, config, _THETA)
    fields.only("sliding_window", reason="sliding_window")
    whole = ["full_attention"] * config["num_hidden_layers"]
    config["layer_types"] = take_layer_types(
        fields, config["num_hidden_layers"], ("full_attention",), whole
    )
    common = common_arguments(config, source)
    finish(fields, {"attention_bias": (False,)})
    return MixtralFamily(
        **common,
        **grouped_arguments(config),
        experts=config["num_local_experts"],
        experts_used=config["num_experts_per_tok"],
        expert_width=config["intermediate_size"],
    )
