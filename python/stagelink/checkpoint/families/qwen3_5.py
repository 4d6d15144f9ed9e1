"""Qwen3.5, dense and with experts: Gated DeltaNet with four input projections, gated attention.

It computes nothing. Source: Qwen3_5TextConfig and Qwen3_5MoeTextConfig in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.families.blocks import expert_shapes, gated_shapes, shared_expert_shapes
from stagelink.checkpoint.families.config_reading import (
    common_arguments,
    finish,
    take_expert_counts,
)
from stagelink.checkpoint.families.delta import FIXED, DeltaFamily, delta_arguments, take_delta
from stagelink.checkpoint.limits import WIDTH_MAX

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source

_EXPERT_WIDTH: Final = 512
# Left over from the family before, in which layers could have no experts.
_FIXED: Final[dict[str, tuple[object, ...]]] = {
    **FIXED,
    "mlp_only_layers": ([],),
    "decoder_sparse_step": (1,),
    "norm_topk_prob": (True,),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen35Family(DeltaFamily):
    """``"qwen3_5_text"``, also inside a composite ``"qwen3_5"``.

    Attributes:
        ffn_width: Values between gate/up and down.
    """

    ffn_width: int

    def linear_shapes(self) -> Shapes:
        """Return the linear block's tensors."""
        return DeltaFamily.linear_shapes(self) | split_projections(self)

    def feed_shapes(self, n: int) -> Shapes:
        """Return the feed-forward block; every layer has the same."""
        del n
        return gated_shapes(self.width, self.ffn_width)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen35MoeFamily(DeltaFamily):
    """``"qwen3_5_moe_text"``, also inside a composite ``"qwen3_5_moe"``.

    Attributes:
        experts: Routed experts of a layer.
        experts_used: Experts that a row passes; their shares are made to sum to 1.
        expert_width: Values between an expert's gate/up and down.
        shared_width: The same of the expert that all rows pass.
    """

    experts: int
    experts_used: int
    expert_width: int
    shared_width: int

    def linear_shapes(self) -> Shapes:
        """Return the linear block's tensors."""
        return DeltaFamily.linear_shapes(self) | split_projections(self)

    def feed_shapes(self, n: int) -> Shapes:
        """Return the experts; every layer has them."""
        del n
        shapes = expert_shapes(self.width, self.expert_width, self.experts)
        shapes |= shared_expert_shapes(self.width, self.shared_width)
        return shapes | {"mlp.gate.weight": (self.experts, self.width)}


def split_projections(family: DeltaFamily) -> Shapes:
    """Return the four input projections of a linear block."""
    width, heads = family.width, family.linear_value_heads
    return {
        "linear_attn.in_proj_qkv.weight": (family.conv_width, width),
        "linear_attn.in_proj_z.weight": (family.linear_values, width),
        "linear_attn.in_proj_b.weight": (heads, width),
        "linear_attn.in_proj_a.weight": (heads, width),
    }


def read_qwen3_5(source: Source, model_type: str) -> Qwen35Family:
    """Read the text config of a dense Qwen3.5.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    config = take_delta(source, model_type, kv_heads=4)
    config["intermediate_size"] = source.fields.count("intermediate_size", WIDTH_MAX)
    arguments = _finished(source, config)
    return Qwen35Family(**arguments, ffn_width=config["intermediate_size"])


def read_qwen3_5_moe(source: Source, model_type: str) -> Qwen35MoeFamily:
    """Read the text config of a Qwen3.5 with experts.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    config = take_delta(source, model_type, kv_heads=2)
    for key in ("moe_intermediate_size", "shared_expert_intermediate_size"):
        config[key] = fields.count(key, WIDTH_MAX, _EXPERT_WIDTH)
    take_expert_counts(fields, config, "num_experts")
    # No layer of this family is dense, whatever width is named for one.
    fields.drop(["intermediate_size"])
    return Qwen35MoeFamily(
        **_finished(source, config),
        experts=config["num_experts"],
        experts_used=config["num_experts_per_tok"],
        expert_width=config["moe_intermediate_size"],
        shared_width=config["shared_expert_intermediate_size"],
    )


def _finished(source: Source, config: dict[str, Any]) -> dict[str, Any]:
    arguments = common_arguments(config, source) | delta_arguments(config, source.fields)
    finish(source.fields, _FIXED)
    return arguments
