"""OLMo 2: norms after each block and none before, q and k normed over all heads at once.

It computes nothing. Source: Olmo2Config and its modules in transformers 5.
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
# What a file means that leaves it out.
_MEANT: Final[dict[str, Any]] = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Olmo2Family(GroupedFamily):
    """``"olmo2"``.

    Attributes:
        ffn_width: Values between gate/up and down.
        attention_bias: Whether q, k, v and o projections add a bias.
    """

    ffn_width: int
    attention_bias: bool

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors; every layer has the same."""
        del n
        return (
            norm_shapes(self.width, "post_attention_layernorm", "post_feedforward_layernorm")
            | norm_shapes(self.query_values, "self_attn.q_norm")
            | norm_shapes(self.key_values, "self_attn.k_norm")
            | attention_shapes(
                self.width,
                self.query_values,
                self.key_values,
                biases=("q", "k", "v", "o") if self.attention_bias else (),
            )
            | gated_shapes(self.width, self.ffn_width)
        )


def read_olmo2(source: Source, model_type: str) -> Olmo2Family:
    """Read an OLMo 2 config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    fields.fill(_MEANT)
    config = take_sizes(fields, model_type)
    take_heads(fields, config, kv_heads=0)
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    take_rotation(fields, config, _THETA)
    config["attention_bias"] = fields.flag("attention_bias", default=False)
    common = common_arguments(config, source)
    finish(fields)
    return Olmo2Family(
        **common,
        **grouped_arguments(config),
        ffn_width=config["intermediate_size"],
        attention_bias=config["attention_bias"],
    )
