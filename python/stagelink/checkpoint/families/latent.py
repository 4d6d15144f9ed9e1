"""What DeepSeek-V2 and V3 share: attention through a latent (MLA), experts after the first layers.

It computes nothing. Source: DeepseekV2Config and DeepseekV3Config in transformers 5, and the fields
of the released files.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.families.base import MLA, Family, LayerState
from stagelink.checkpoint.families.blocks import expert_shapes, gated_shapes, norm_shapes
from stagelink.checkpoint.families.config_reading import (
    take_expert_counts,
    take_rotation,
    take_sizes,
)
from stagelink.checkpoint.limits import EXPERTS_MAX, WIDTH_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.fields import Fields

_THETA: Final = 10000.0
_KINDS: Final = ("default", "linear", "yarn")
_SIZES: Final = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentFamily(Family):
    """A decoder that keeps one latent and one turned key a position, whatever its heads.

    Attributes:
        heads: Query heads.
        query_rank: Values of the queries' own latent, 0 where q is projected at once.
        latent_width: Values of the latent that keys and values are made of.
        rope_width: Values of a head that are turned by position; all heads share one key of them.
        plain_width: Values of a head that are not turned.
        value_width: Values of a value head.
        ffn_width: Values between gate/up and down in a layer without experts.
        dense_layers: First layers, which have no experts.
        experts: Routed experts of a layer.
        experts_used: Experts that a row passes.
        expert_width: Values between an expert's gate/up and down.
        shared_experts: Experts that all rows pass, held as one block that many times as wide.
        groups: Groups that the experts are divided into.
        groups_used: Groups that a row may choose experts of.
        routed_scale: What the routed experts' sum is multiplied by.
        experts_normed: Whether the chosen experts' shares are made to sum to 1.
    """

    heads: int
    query_rank: int
    latent_width: int
    rope_width: int
    plain_width: int
    value_width: int
    ffn_width: int
    dense_layers: int
    experts: int
    experts_used: int
    expert_width: int
    shared_experts: int
    groups: int
    groups_used: int
    routed_scale: float
    experts_normed: bool

    def is_sparse(self, n: int) -> bool:
        """Say whether layer ``n``, by absolute number, routes to experts."""
        return n >= self.dense_layers

    def layer_shapes(self, n: int) -> Shapes:
        """Return a layer's tensors."""
        norms = norm_shapes(self.width, "input_layernorm", "post_attention_layernorm")
        return norms | self.attention_shapes() | self.feed_shapes(n)

    def attention_shapes(self) -> Shapes:
        """Return the tensors of attention."""
        width, latent, heads = self.width, self.latent_width, self.heads
        query = heads * (self.plain_width + self.rope_width)
        shapes: Shapes = {
            "self_attn.kv_a_proj_with_mqa.weight": (latent + self.rope_width, width),
            "self_attn.kv_a_layernorm.weight": (latent,),
            "self_attn.kv_b_proj.weight": (heads * (self.plain_width + self.value_width), latent),
            "self_attn.o_proj.weight": (width, heads * self.value_width),
        }
        if not self.query_rank:
            return shapes | {"self_attn.q_proj.weight": (query, width)}
        return shapes | {
            "self_attn.q_a_proj.weight": (self.query_rank, width),
            "self_attn.q_a_layernorm.weight": (self.query_rank,),
            "self_attn.q_b_proj.weight": (query, self.query_rank),
        }

    def feed_shapes(self, n: int) -> Shapes:
        """Return the experts, or the one block of a layer without them."""
        width = self.width
        if not self.is_sparse(n):
            return gated_shapes(width, self.ffn_width)
        shapes = expert_shapes(width, self.expert_width, self.experts)
        shapes["mlp.gate.weight"] = (self.experts, width)
        if self.shared_experts:
            inner = self.expert_width * self.shared_experts
            shapes |= gated_shapes(width, inner, "mlp.shared_experts")
        return shapes

    def layer_state(self, n: int, value_bytes: int = 2) -> LayerState:
        """Return the latent and the turned key of every position."""
        del n
        return LayerState(MLA, (self.latent_width + self.rope_width) * value_bytes)


def take_latent(source: Source, model_type: str, meant: Mapping[str, Any]) -> dict[str, Any]:
    """Take what both families say in the same words; ``meant`` has what each leaves unsaid."""
    fields = source.fields
    fields.fill(meant)
    config = take_sizes(fields, model_type)
    heads = fields.count("num_attention_heads", WIDTH_MAX)
    # Keys have no heads of their own; files repeat the number, and some say a derived width.
    fields.drop(["num_key_value_heads", "head_dim", "qk_head_dim"])
    config["num_attention_heads"] = config["num_key_value_heads"] = heads
    # Null says that q is projected at once; where that is wrong the tensors show it.
    config["q_lora_rank"] = None
    if fields.has("q_lora_rank"):
        config["q_lora_rank"] = fields.count("q_lora_rank", WIDTH_MAX)
    config |= {key: fields.count(key, WIDTH_MAX, usual) for key, usual in _SIZES.items()}
    if config["qk_rope_head_dim"] % 2:
        raise fields.refusal("qk_rope_head_dim", "an even number", config["qk_rope_head_dim"])
    config["intermediate_size"] = fields.count("intermediate_size", WIDTH_MAX)
    config["moe_intermediate_size"] = fields.count("moe_intermediate_size", WIDTH_MAX)
    take_expert_counts(fields, config, "n_routed_experts")
    config["n_shared_experts"] = fields.count("n_shared_experts", EXPERTS_MAX, minimum=0)
    layers = config["num_hidden_layers"]
    config["first_k_dense_replace"] = fields.count("first_k_dense_replace", layers, minimum=0)
    take_rotation(fields, config, _THETA, _KINDS)
    _take_groups(fields, config)
    return config


def _take_groups(fields: Fields, config: dict[str, Any]) -> None:
    experts = config["n_routed_experts"]
    config["n_group"] = fields.count("n_group", experts)
    config["topk_group"] = fields.count("topk_group", config["n_group"])
    if experts % config["n_group"]:
        raise fields.refusal("n_group", f"a divisor of {experts} experts", config["n_group"])
    config["routed_scaling_factor"] = fields.number("routed_scaling_factor")


def check_group_room(fields: Fields, config: Mapping[str, Any]) -> None:
    """Refuse more experts a row than the kept groups hold: nothing would say which the others are.

    Raises:
        CheckpointError: ``config_field``.
    """
    room = config["topk_group"] * (config["n_routed_experts"] // config["n_group"])
    used = config["num_experts_per_tok"]
    if used > room:
        groups = f"{config['topk_group']} of {config['n_group']} groups"
        wanted = f"at most {room}, the experts of {groups} (topk_group of n_group)"
        raise fields.refusal("num_experts_per_tok", wanted, used)


def latent_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``LatentFamily`` that an understood config answers."""
    return {
        "layer_kinds": (MLA,) * config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "query_rank": config["q_lora_rank"] or 0,
        "latent_width": config["kv_lora_rank"],
        "rope_width": config["qk_rope_head_dim"],
        "plain_width": config["qk_nope_head_dim"],
        "value_width": config["v_head_dim"],
        "ffn_width": config["intermediate_size"],
        "dense_layers": config["first_k_dense_replace"],
        "experts": config["n_routed_experts"],
        "experts_used": config["num_experts_per_tok"],
        "expert_width": config["moe_intermediate_size"],
        "shared_experts": config["n_shared_experts"],
        "groups": config["n_group"],
        "groups_used": config["topk_group"],
        "routed_scale": config["routed_scaling_factor"],
        "experts_normed": config["norm_topk_prob"],
    }
