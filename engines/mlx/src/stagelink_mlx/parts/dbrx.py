"""What DBRX's layers need of mlx_lm's: experts in one stack, and their choice in float32.

It reads no weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink_mlx.library import models_module
from stagelink_mlx.parts.routers import RoutedBlock, Router, Routing

if TYPE_CHECKING:
    from stagelink.engine import Family

__all__ = ["correct_dbrx"]


def correct_dbrx(layer: Any, family: Family, n: int) -> None:
    """Correct a layer in place.

    mlx_lm's block asks which experts a row uses while it computes, and runs them one by one.
    """
    del n
    said = family.config["ffn_config"]
    experts = models_module("switch_layers").SwitchGLU(
        family.width, said["ffn_hidden_size"], said["moe_num_experts"]
    )
    routing = Routing(
        said["moe_num_experts"],
        said["moe_top_k"],
        is_normed=said["moe_normalize_expert_weights"] is not None,
        has_softmax=True,
        addend=0.0,
        is_corrected=False,
    )
    layer.ffn = RoutedBlock(Router(routing, family.width), experts, None)
