"""What Qwen3-Next and Qwen3.5 share: Gated DeltaNet layers, gated attention layers, MTP tensors.

It computes nothing. Source: Qwen3NextConfig and Qwen3_5TextConfig in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.families.base import LINEAR, LayerState
from stagelink.checkpoint.families.blocks import attention_shapes, norm_shapes
from stagelink.checkpoint.families.config_reading import take_heads, take_layer_types, take_sizes
from stagelink.checkpoint.families.grouped import GroupedFamily, grouped_arguments
from stagelink.checkpoint.limits import LAYERS_MAX, WIDTH_MAX
from stagelink.checkpoint.rope import take_rope_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.fields import Fields

_PARTIAL: Final = 0.25
_FULL_EVERY: Final = 4
_DRAFTERS_MAX: Final = 8
_RECURRENT_BYTES: Final = 4
_KINDS: Final = ("linear_attention", "full_attention")
_KERNEL: Final = "linear_conv_kernel_dim"
_KERNEL_MEANT: Final = 4
# Sizes of the linear layers and what is meant where a config leaves one out.
_SIZES: Final = {
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
# What newer files say of themselves, and the one value that the formulas have.
FIXED: Final[dict[str, tuple[object, ...]]] = {
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "mamba_ssm_dtype": ("float32",),
    "mtp_use_dedicated_embeddings": (False,),
    "output_gate_type": ("swish", "silu"),
    "use_sliding_window": (False,),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaFamily(GroupedFamily):
    """A decoder whose layers are Gated DeltaNet, but every few, which are gated attention.

    All RMSNorms but the one inside the linear layers multiply by ``1 + weight``.

    Attributes:
        rotary_width: Values of a head that are turned, its first ones.
        conv_kernel: Rows that the causal convolution sees, its own included.
        linear_key_heads: q and k heads of a linear layer.
        linear_value_heads: v heads of a linear layer, a multiple of ``linear_key_heads``.
        linear_key_width: Values of a q or k head there.
        linear_value_width: Values of a v head there.
        drafter_layers: Layers of the MTP head, 0 for none.
    """

    rotary_width: int
    conv_kernel: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_width: int
    linear_value_width: int
    drafter_layers: int

    @property
    def linear_keys(self) -> int:
        """Values of q, and of k, over all heads of a linear layer."""
        return self.linear_key_heads * self.linear_key_width

    @property
    def linear_values(self) -> int:
        """Values of v over all heads of a linear layer."""
        return self.linear_value_heads * self.linear_value_width

    @property
    def conv_width(self) -> int:
        """Values of a row that pass the convolution: q, k, v."""
        return 2 * self.linear_keys + self.linear_values

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors."""
        return self.mixer_shapes(self.layer_kinds[n]) | self.feed_shapes(n)

    def mixer_shapes(self, kind: str) -> Shapes:
        """Return norms and the attention or linear block of a layer of this kind."""
        shapes = norm_shapes(self.width, "input_layernorm", "post_attention_layernorm")
        if kind == LINEAR:
            return shapes | self.linear_shapes()
        shapes |= attention_shapes(
            self.width, self.query_values, self.key_values, norm=self.head_width
        )
        # Each q head is followed by as many values that gate the attention's result.
        shapes["self_attn.q_proj.weight"] = (2 * self.query_values, self.width)
        return shapes

    def linear_shapes(self) -> Shapes:
        """Return the linear block's tensors, but for its input projections."""
        return {
            "linear_attn.conv1d.weight": (self.conv_width, 1, self.conv_kernel),
            "linear_attn.dt_bias": (self.linear_value_heads,),
            "linear_attn.A_log": (self.linear_value_heads,),
            "linear_attn.norm.weight": (self.linear_value_width,),
            "linear_attn.out_proj.weight": (self.width, self.linear_values),
        }

    def feed_shapes(self, n: int) -> Shapes:
        """Return the feed-forward block of layer ``n``; a layer past the last is the drafter's."""
        raise NotImplementedError

    def drafter_tensors(self) -> Shapes:
        """Return the MTP head: two norms, the projection of both halves, its layers, a norm."""
        if not self.drafter_layers:
            return {}
        width = self.width
        norms = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
        shapes = norm_shapes(width, *norms) | {"mtp.fc.weight": (width, 2 * width)}
        layer = self.mixer_shapes("full") | self.feed_shapes(self.layers)
        for n in range(self.drafter_layers):
            shapes |= {f"mtp.layers.{n}.{name}": shape for name, shape in layer.items()}
        return shapes

    def layer_state(self, n: int, value_bytes: int = 2) -> LayerState:
        """Return keys and values, or the last rows of the convolution and the float32 state."""
        if self.layer_kinds[n] != LINEAR:
            return GroupedFamily.layer_state(self, n, value_bytes)
        conv = (self.conv_kernel - 1) * self.conv_width * value_bytes
        state = self.linear_values * self.linear_key_width * _RECURRENT_BYTES
        # Values that are mixed, and a float32 decay and rate a head; or the row as it came in.
        inputs = self.conv_width * value_bytes + 2 * self.linear_value_heads * _RECURRENT_BYTES
        row = max(inputs, self.width * value_bytes)
        return LayerState(LINEAR, 0, conv + state, bytes_per_row=row)


def take_delta(source: Source, model_type: str, *, kv_heads: int) -> dict[str, Any]:
    """Take what both families say in the same words; ``kv_heads`` is meant where none are said."""
    fields = source.fields
    config = take_sizes(fields, model_type)
    layers = config["num_hidden_layers"]
    take_heads(fields, config, kv_heads=kv_heads, default=256)
    every = fields.count("full_attention_interval", LAYERS_MAX, _FULL_EVERY)
    usual = [_KINDS[(n + 1) % every == 0] for n in range(layers)]
    config["layer_types"] = take_layer_types(fields, layers, _KINDS, usual)
    # A kernel of one position has the same shape in transformers' files and in MLX's, whose norms
    # hold one more: which file it is could not be told.
    kernel = fields.count(_KERNEL, WIDTH_MAX, _KERNEL_MEANT, minimum=2)
    config |= {key: fields.count(key, WIDTH_MAX, meant) for key, meant in _SIZES.items()}
    config[_KERNEL] = kernel
    if config["linear_num_value_heads"] % config["linear_num_key_heads"]:
        wanted = f"a multiple of {config['linear_num_key_heads']} key heads"
        raise fields.refusal("linear_num_value_heads", wanted, config["linear_num_value_heads"])
    config["rope_parameters"] = take_rope_parameters(fields, None, partial=_PARTIAL)
    _rotary_width(fields, config)
    config["mtp_num_hidden_layers"] = _take_drafter(source)
    return config


def delta_arguments(config: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return the arguments of ``DeltaFamily`` that an understood config answers."""
    return grouped_arguments(config) | {
        "rotary_width": _rotary_width(fields, config),
        "conv_kernel": config["linear_conv_kernel_dim"],
        "linear_key_heads": config["linear_num_key_heads"],
        "linear_value_heads": config["linear_num_value_heads"],
        "linear_key_width": config["linear_key_head_dim"],
        "linear_value_width": config["linear_value_head_dim"],
        "drafter_layers": config["mtp_num_hidden_layers"],
    }


def _rotary_width(fields: Fields, config: Mapping[str, Any]) -> int:
    share = config["rope_parameters"]["partial_rotary_factor"]
    width = int(config["head_dim"] * share)
    if not 2 <= width <= config["head_dim"] or width % 2:
        wanted = f"a share that turns an even part of {config['head_dim']} values"
        raise fields.refusal("partial_rotary_factor", wanted, share)
    return width


def _take_drafter(source: Source) -> int:
    # The first files of the family have the tensors and no field that says so.
    found = 1 if source.has_tensor("mtp.fc.weight") or not source.names else 0
    fields = source.fields
    return fields.count("mtp_num_hidden_layers", _DRAFTERS_MAX, found, minimum=0)
