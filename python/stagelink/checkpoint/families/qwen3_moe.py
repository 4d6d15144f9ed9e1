"""Qwen3 with routed experts; which layers have them is said by absolute number.

It computes nothing. Source: Qwen3MoeConfig and its modules in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from stagelink.checkpoint.families.blocks import (
    attention_shapes,
    expert_shapes,
    gated_shapes,
    norm_shapes,
)
from stagelink.checkpoint.families.config_reading import (
    common_arguments,
    finish,
    has_experts,
    take_expert_counts,
    take_heads,
    take_layer_types,
    take_rotation,
    take_sizes,
    take_sparse_layers,
)
from stagelink.checkpoint.families.grouped import GroupedFamily, grouped_arguments
from stagelink.checkpoint.limits import WIDTH_MAX

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source

_KV_HEADS: Final = 4
_HEAD_WIDTH: Final = 128
_EXPERT_WIDTH: Final = 768


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3MoeFamily(GroupedFamily):
    """``"qwen3_moe"``.

    Attributes:
        ffn_width: Values between gate/up and down in a layer without experts.
        experts: Routed experts of a layer that has them.
        experts_used: Experts that a row passes.
        expert_width: Values between an expert's gate/up and down.
        experts_normed: Whether the chosen experts' shares are made to sum to 1.
    """

    ffn_width: int
    experts: int
    experts_used: int
    expert_width: int
    experts_normed: bool

    def is_sparse(self, n: int) -> bool:
        """Say whether layer ``n``, by absolute number, routes to experts."""
        return has_experts(self.config, n)

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors."""
        width = self.width
        shapes = norm_shapes(width, "input_layernorm", "post_attention_layernorm")
        shapes |= attention_shapes(width, self.query_values, self.key_values, norm=self.head_width)
        if not self.is_sparse(n):
            return shapes | gated_shapes(width, self.ffn_width)
        shapes["mlp.gate.weight"] = (self.experts, width)
        return shapes | expert_shapes(width, self.expert_width, self.experts)


def read_qwen3_moe(source: Source, model_type: str) -> Qwen3MoeFamily:
    """Read a Qwen3 MoE config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    config = take_sizes(fields, model_type)
    take_heads(fields, config, kv_heads=_KV_HEADS, default=_HEAD_WIDTH)
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    config["moe_intermediate_size"] = fields.count(
        "moe_intermediate_size", WIDTH_MAX, _EXPERT_WIDTH
    )
    take_expert_counts(fields, config, "num_experts")
    take_sparse_layers(fields, config)
    config["norm_topk_prob"] = fields.flag("norm_topk_prob", default=False)
    take_rotation(fields, config, None)
    fields.only("use_sliding_window", False, reason="sliding_window")
    # As in Qwen3, a window may be named and left off.
    fields.drop(["sliding_window"])
    whole = ["full_attention"] * config["num_hidden_layers"]
    config["layer_types"] = take_layer_types(
        fields, config["num_hidden_layers"], ("full_attention",), whole
    )
    common = common_arguments(config, source)
    finish(fields, {"attention_bias": (False,)})
    return Qwen3MoeFamily(
        **common,
        **grouped_arguments(config),
        ffn_width=config["intermediate_size"],
        experts=config["num_experts"],
        experts_used=config["num_experts_per_tok"],
        expert_width=config["moe_intermediate_size"],
        experts_normed=config["norm_topk_prob"],
    )
