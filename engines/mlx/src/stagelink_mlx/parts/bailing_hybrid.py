"""What Ling 2.5's layers need of mlx_lm's: the engine's RoPE, and a choice of experts in float32.

It reads no weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink_mlx.parts.rope import make_rope, softmax_factor
from stagelink_mlx.parts.routers import RoutedBlock, Router, Routing

if TYPE_CHECKING:
    from stagelink.engine import Family

__all__ = ["correct_bailing_hybrid"]


def correct_bailing_hybrid(layer: Any, family: Family, n: int) -> None:
    """Correct a layer in place."""
    del n
    config, attention = family.config, layer.attention
    rope = config["rope_parameters"]
    if layer.is_global:
        turned, pairs = config["qk_rope_head_dim"], config["rope_interleave"]
        attention.scale *= softmax_factor(rope)
    else:
        turned, pairs = int(config["head_dim"] * rope["partial_rotary_factor"]), False
    attention.rope = make_rope(rope, turned, traditional=pairs)
    if "switch_mlp" not in layer.mlp:
        return
    used = config["num_experts_per_tok"]
    routing = Routing(
        config["num_experts"],
        used,
        config["n_group"],
        config["topk_group"],
        # A single expert's share is its score.
        is_normed=config["norm_topk_prob"] and used > 1,
        scale=config["routed_scaling_factor"],
        has_softmax=config["score_function"] == "softmax",
        is_corrected=config["moe_router_enable_expert_bias"],
    )
    block = layer.mlp
    shared = block.get("shared_experts")
    layer.mlp = RoutedBlock(Router(routing, family.width), block.switch_mlp, shared)
