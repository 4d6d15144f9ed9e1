"""DeepSeek-V2's choice of experts, in float32 whatever the rows are; mlx_lm's rounds its scores.

It reads no weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink_mlx.parts.routers import RoutedBlock, Router, Routing

if TYPE_CHECKING:
    from stagelink.engine import Family

__all__ = ["correct_deepseek_v2"]


def correct_deepseek_v2(layer: Any, family: Family, n: int) -> None:
    """Correct a layer in place; a group of its experts is worth its best one."""
    del n
    if "gate" not in layer.mlp:
        return
    config, old = family.config, layer.mlp
    has_groups = config["topk_method"] == "group_limited_greedy"
    routing = Routing(
        config["n_routed_experts"],
        config["num_experts_per_tok"],
        config["n_group"] if has_groups else 1,
        config["topk_group"] if has_groups else 1,
        is_normed=False,
        scale=config["routed_scaling_factor"],
        has_softmax=True,
        group_scores=1,
        is_corrected=False,
    )
    gate = Router(routing, family.width)
    layer.mlp = RoutedBlock(gate, old.switch_mlp, old.get("shared_experts"))
