"""GPT-OSS: biased attention with a sink a head, sliding every other layer, experts with biases.

It computes nothing. Source: GptOssConfig and its modules in transformers 5.
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
from stagelink.checkpoint.limits import CONTEXT_MAX, WIDTH_MAX

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source

_THETA: Final = 150000.0
_KINDS: Final = ("sliding_attention", "full_attention")
_MEANT: Final = {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128}
# What is meant where a config says nothing of how positions turn: not the plain turning.
_YARN: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_ALPHA: Final = 1.702
_LIMIT: Final = 7.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptOssFamily(GroupedFamily):
    """``"gpt_oss"``. Experts are stacked as ``[experts, in, out]``; gate and up alternate in out.

    Attributes:
        experts: Routed experts of a layer.
        experts_used: Experts that a row passes; their shares are a softmax over the chosen.
        expert_width: Values between an expert's gate/up and down.
        swiglu_alpha: Gain of the sigmoid in the gate.
        swiglu_limit: Where gate and up are cut off.
    """

    experts: int
    experts_used: int
    expert_width: int
    swiglu_alpha: float
    swiglu_limit: float

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors; every layer has the same."""
        del n
        width, inner, experts = self.width, self.expert_width, self.experts
        shapes = norm_shapes(width, "input_layernorm", "post_attention_layernorm")
        shapes |= attention_shapes(
            width, self.query_values, self.key_values, biases=("q", "k", "v", "o")
        )
        return shapes | {
            "self_attn.sinks": (self.heads,),
            "mlp.router.weight": (experts, width),
            "mlp.router.bias": (experts,),
            "mlp.experts.gate_up_proj": (experts, width, 2 * inner),
            "mlp.experts.gate_up_proj_bias": (experts, 2 * inner),
            "mlp.experts.down_proj": (experts, inner, width),
            "mlp.experts.down_proj_bias": (experts, width),
        }


def read_gpt_oss(source: Source, model_type: str) -> GptOssFamily:
    """Read a GPT-OSS config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    fields.fill(_MEANT)
    config = take_sizes(fields, model_type)
    layers = config["num_hidden_layers"]
    take_heads(fields, config)
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    take_expert_counts(fields, config, "num_local_experts")
    # The same number under the name that the released files were made with.
    fields.only("experts_per_token", config["num_experts_per_tok"])
    usual = [_KINDS[(n + 1) % 2 == 0] for n in range(layers)]
    config["layer_types"] = take_layer_types(fields, layers, _KINDS, usual)
    config["sliding_window"] = fields.count("sliding_window", WIDTH_MAX)
    config["swiglu_alpha"] = fields.number("swiglu_alpha", _ALPHA)
    config["swiglu_limit"] = fields.number("swiglu_limit", _LIMIT)
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        fields.fill({"rope_parameters": _YARN})
    rope = take_rotation(fields, config, _THETA)
    config["attention_bias"] = True
    # Says once more where the positions of YaRN begin.
    first = fields.count("initial_context_length", CONTEXT_MAX, CONTEXT_MAX)
    if first not in (CONTEXT_MAX, rope.get("original_max_position_embeddings", first)):
        wanted = "the same as original_max_position_embeddings"
        raise fields.refusal("initial_context_length", wanted, first)
    common = common_arguments(config, source)
    finish(fields, {"attention_bias": (True,)})
    return GptOssFamily(
        **common,
        **grouped_arguments(config),
        experts=config["num_local_experts"],
        experts_used=config["num_experts_per_tok"],
        expert_width=config["intermediate_size"],
        swiglu_alpha=config["swiglu_alpha"],
        swiglu_limit=config["swiglu_limit"],
    )
