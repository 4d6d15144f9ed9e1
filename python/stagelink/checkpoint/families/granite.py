"""Granite: the plain decoder with a factor at each of four places.

It computes nothing. Source: GraniteConfig and its modules in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.families.blocks import attention_shapes, gated_shapes, norm_shapes
from stagelink.checkpoint.families.config_reading import (
    common_arguments,
    finish,
    take_heads,
    take_rotation,
    take_sizes,
)
from stagelink.checkpoint.families.grouped import GroupedFamily, grouped_arguments
from stagelink.checkpoint.limits import WIDTH_MAX

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source

_THETA: Final = 10000.0
_FACTORS: Final = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteFamily(GroupedFamily):
    """``"granite"``.

    Attributes:
        ffn_width: Values between gate/up and down.
        embedding_multiplier: Factor on every embedding.
        attention_multiplier: Factor on the products of queries and keys, in place of the usual.
        residual_multiplier: Factor on what each block adds.
        logits_scaling: What logits are divided by.
    """

    ffn_width: int
    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors; every layer has the same."""
        del n
        return (
            norm_shapes(self.width, "input_layernorm", "post_attention_layernorm")
            | attention_shapes(self.width, self.query_values, self.key_values)
            | gated_shapes(self.width, self.ffn_width)
        )


def read_granite(source: Source, model_type: str) -> GraniteFamily:
    """Read a Granite config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    config = take_sizes(fields, model_type)
    take_heads(fields, config, kv_heads=0)
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    take_rotation(fields, config, _THETA)
    factors: dict[str, Any] = {name: fields.number(name, 1.0) for name in _FACTORS}
    config |= factors
    common = common_arguments(config, source)
    finish(fields, {"attention_bias": (False,)})
    return GraniteFamily(
        **common, **grouped_arguments(config), ffn_width=config["intermediate_size"], **factors
    )
