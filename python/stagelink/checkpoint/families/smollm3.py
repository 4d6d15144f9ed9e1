"""SmolLM3: a plain decoder whose every few layers turn nothing by position.

It computes nothing. Source: SmolLM3Config and its modules in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.families.blocks import attention_shapes, gated_shapes, norm_shapes
from stagelink.checkpoint.families.config_reading import (
    common_arguments,
    finish,
    take_heads,
    take_layer_types,
    take_rotation,
    take_sizes,
)
from stagelink.checkpoint.families.grouped import GroupedFamily, grouped_arguments
from stagelink.checkpoint.limits import LAYERS_MAX, WIDTH_MAX

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.fields import Fields

_THETA: Final = 2000000.0
_KV_HEADS: Final = 4
# SmolLM3-3B says pretraining_tp 2, which no code of it reads.
_FIXED: Final[dict[str, tuple[object, ...]]] = {
    "attention_bias": (False,),
    "pretraining_tp": (1, 2),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmolLm3Family(GroupedFamily):
    """``"smollm3"``.

    Attributes:
        ffn_width: Values between gate/up and down.
        rope_layers: Whether each layer, by its absolute number, turns q and k by position.
    """

    ffn_width: int
    rope_layers: tuple[bool, ...]

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors; every layer has the same."""
        del n
        return (
            norm_shapes(self.width, "input_layernorm", "post_attention_layernorm")
            | attention_shapes(self.width, self.query_values, self.key_values)
            | gated_shapes(self.width, self.ffn_width)
        )


def read_smollm3(source: Source, model_type: str) -> SmolLm3Family:
    """Read a SmolLM3 config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    config = take_sizes(fields, model_type, tied=True)
    layers = config["num_hidden_layers"]
    take_heads(fields, config, kv_heads=_KV_HEADS)
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    take_rotation(fields, config, _THETA)
    config["no_rope_layers"] = _take_rope_layers(fields, layers)
    # Only layers without RoPE could slide; the released model switches that off.
    fields.only("use_sliding_window", False, reason="sliding_window")
    fields.only("sliding_window", reason="sliding_window")
    whole = ["full_attention"] * layers
    config["layer_types"] = take_layer_types(fields, layers, ("full_attention",), whole)
    common = common_arguments(config, source)
    finish(fields, _FIXED)
    return SmolLm3Family(
        **common,
        **grouped_arguments(config),
        ffn_width=config["intermediate_size"],
        rope_layers=tuple(one == 1 for one in config["no_rope_layers"]),
    )


def _take_rope_layers(fields: Fields, layers: int) -> list[Any]:
    every = fields.count("no_rope_layer_interval", LAYERS_MAX, 4)
    usual = [int((n + 1) % every != 0) for n in range(layers)]
    # The name says the opposite of what it holds: 1 is a layer with RoPE.
    said = fields.raw("no_rope_layers", usual)
    right = isinstance(said, list) and len(said) >= layers
    if not right or any(type(one) is not int or one not in (0, 1) for one in said):
        raise fields.refusal("no_rope_layers", f"0 or 1 for each of {layers} layers", said)
    return list(said[:layers])
