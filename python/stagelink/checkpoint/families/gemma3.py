"""Gemma 3, the text model: four norms a layer, sliding and full layers with a theta each.

It computes nothing. Source: Gemma3TextConfig and its modules in transformers 5.
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
    take_sizes,
)
from stagelink.checkpoint.families.grouped import GroupedFamily, grouped_arguments
from stagelink.checkpoint.limits import LAYERS_MAX, WIDTH_MAX
from stagelink.checkpoint.rope import KINDS, parse_rope

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.fields import Fields

_KINDS: Final = ("sliding_attention", "full_attention")
_THETAS: Final = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}
# What a composite file of the family leaves out.
_MEANT: Final = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_FIXED: Final[dict[str, tuple[object, ...]]] = {
    "attention_bias": (False,),
    "use_bidirectional_attention": (False,),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gemma3Family(GroupedFamily):
    """``"gemma3_text"``, also inside a composite ``"gemma3"``.

    Every RMSNorm multiplies by ``1 + weight``; the lead multiplies embeddings by ``embed_scale``.

    Attributes:
        ffn_width: Values between gate/up and down; the gate passes a GELU (tanh form).
        query_scale: What q is multiplied by: ``query_pre_attn_scalar ** -0.5``.
        embed_scale: ``width ** 0.5``.
    """

    ffn_width: int
    query_scale: float
    embed_scale: float

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors; every layer has the same."""
        del n
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        return (
            norm_shapes(self.width, *(f"{name}_layernorm" for name in norms))
            | attention_shapes(self.width, self.query_values, self.key_values, norm=self.head_width)
            | gated_shapes(self.width, self.ffn_width)
        )


def read_gemma3(source: Source, model_type: str) -> Gemma3Family:
    """Read a Gemma 3 text config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    fields.fill(_MEANT)
    config = take_sizes(fields, model_type, activation="gelu_pytorch_tanh", tied=True)
    # The family's own name for its activation; both were read.
    config["hidden_activation"] = config.pop("hidden_act")
    layers = config["num_hidden_layers"]
    take_heads(fields, config)
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    config["query_pre_attn_scalar"] = fields.count("query_pre_attn_scalar", WIDTH_MAX)
    every = fields.count("sliding_window_pattern", LAYERS_MAX, 6)
    # transformers repeats the pattern under this name, also where the list says something else.
    fields.drop(["_sliding_window_pattern"])
    usual = [_KINDS[(n + 1) % every == 0] for n in range(layers)]
    config["layer_types"] = take_layer_types(fields, layers, _KINDS, usual)
    config["sliding_window"] = fields.count("sliding_window", WIDTH_MAX)
    config["rope_parameters"] = _take_ropes(fields)
    common = common_arguments(config, source)
    finish(fields, _FIXED)
    return Gemma3Family(
        **common,
        **grouped_arguments(config),
        ffn_width=config["intermediate_size"],
        query_scale=config["query_pre_attn_scalar"] ** -0.5,
        embed_scale=config["hidden_size"] ** 0.5,
    )


def _take_ropes(fields: Fields) -> dict[str, Any]:
    """Take the two kinds' settings, from the nested form or from the older four fields."""
    thetas = dict(_THETAS)
    for kind, key in (
        ("full_attention", "rope_theta"),
        ("sliding_attention", "rope_local_base_freq"),
    ):
        if fields.has(key):
            thetas[kind] = fields.number(key)
    found = {kind: {"rope_type": "default"} for kind in _KINDS}
    if fields.has("rope_scaling"):
        value = fields.raw("rope_scaling")
        found["full_attention"] = parse_rope(fields, "rope_scaling", value, KINDS, partial=False)
    nested = fields.raw("rope_parameters", {})
    if not isinstance(nested, dict) or not set(nested) <= set(_KINDS):
        wanted = f"one object each for {' and '.join(_KINDS)}"
        raise fields.refusal("rope_parameters", wanted, nested, reason="rope_scaling")
    for kind, value in nested.items():
        if value is not None:
            where = f"rope_parameters.{kind}"
            found[kind] = parse_rope(fields, where, value, KINDS, partial=False)
    return {kind: {"rope_theta": thetas[kind], **found[kind]} for kind in _KINDS}
