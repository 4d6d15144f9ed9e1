"""Qwen3-Next: Gated DeltaNet and gated attention, with routed experts and one that all rows pass.

It computes nothing. Source: Qwen3NextConfig and its modules in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from stagelink.checkpoint.families.blocks import expert_shapes, gated_shapes, shared_expert_shapes
from stagelink.checkpoint.families.config_reading import (
    common_arguments,
    finish,
    has_experts,
    take_expert_counts,
    take_sparse_layers,
)
from stagelink.checkpoint.families.delta import FIXED, DeltaFamily, delta_arguments, take_delta
from stagelink.checkpoint.limits import WIDTH_MAX

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source

_KV_HEADS: Final = 2
_EXPERT_WIDTH: Final = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3NextFamily(DeltaFamily):
    """``"qwen3_next"``. ``in_proj_qkvz`` and ``in_proj_ba`` are grouped by key head.

    Attributes:
        ffn_width: Values between gate/up and down in a layer without experts.
        experts: Routed experts of a layer that has them.
        experts_used: Experts that a row passes.
        expert_width: Values between an expert's gate/up and down.
        shared_width: The same of the expert that all rows pass.
        experts_normed: Whether the chosen experts' shares are made to sum to 1.
    """

    ffn_width: int
    experts: int
    experts_used: int
    expert_width: int
    shared_width: int
    experts_normed: bool

    def is_sparse(self, n: int) -> bool:
        """Say whether layer ``n``, by absolute number, routes to experts; the drafter's does."""
        return n >= self.layers or has_experts(self.config, n)

    def linear_shapes(self) -> Shapes:
        """Return the linear block's tensors."""
        joined = self.conv_width + self.linear_values
        return DeltaFamily.linear_shapes(self) | {
            "linear_attn.in_proj_qkvz.weight": (joined, self.width),
            "linear_attn.in_proj_ba.weight": (2 * self.linear_value_heads, self.width),
        }

    def feed_shapes(self, n: int) -> Shapes:
        """Return the experts, or the one block of a layer without them."""
        width = self.width
        if not self.is_sparse(n):
            return gated_shapes(width, self.ffn_width)
        shapes = expert_shapes(width, self.expert_width, self.experts)
        shapes |= shared_expert_shapes(width, self.shared_width)
        return shapes | {"mlp.gate.weight": (self.experts, width)}


def read_qwen3_next(source: Source, model_type: str) -> Qwen3NextFamily:
    """Read a Qwen3-Next config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    config = take_delta(source, model_type, kv_heads=_KV_HEADS)
    for key in ("moe_intermediate_size", "shared_expert_intermediate_size"):
        config[key] = fields.count(key, WIDTH_MAX, _EXPERT_WIDTH)
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    take_expert_counts(fields, config, "num_experts")
    take_sparse_layers(fields, config)
    config["norm_topk_prob"] = fields.flag("norm_topk_prob", default=True)
    common = common_arguments(config, source)
    finish(fields, FIXED)
    return Qwen3NextFamily(
        **common,
        **delta_arguments(config, fields),
        ffn_width=config["intermediate_size"],
        experts=config["num_experts"],
        experts_used=config["num_experts_per_tok"],
        expert_width=config["moe_intermediate_size"],
        shared_width=config["shared_expert_intermediate_size"],
        experts_normed=config["norm_topk_prob"],
    )
