"""What MiniMax-M3's layers need of mlx_lm's: attention to chosen blocks, and a choice of experts.

It reads no weights; the blocks are chosen in ``parts/block_choice.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink_mlx.parts.block_choice import ChosenBlocksAttention
from stagelink_mlx.parts.routers import RoutedBlock, Router, Routing

if TYPE_CHECKING:
    from stagelink.engine import Family

__all__ = ["correct_minimax_m3", "minimax_m3_arguments"]


def minimax_m3_arguments(family: Family) -> dict[str, Any]:
    """Return the arguments that the config says in other words."""
    config = family.config
    share = config["rope_parameters"]["partial_rotary_factor"]
    return {
        "layer_types": [
            "minimax_m3_sparse" if kind == "indexed" else "full_attention"
            for kind in family.layer_kinds
        ],
        "moe_layer_freq": None,
        "rotary_dim": int(config["head_dim"] * share),
        "sparse_attention_config": None,
        "sparse_attention_freq": None,
        "swiglu_alpha": config["swiglu_alpha"],
        "swiglu_limit": config["swiglu_limit"],
    }


def correct_minimax_m3(layer: Any, family: Family, n: int) -> None:
    """Correct a layer in place."""
    del n
    config = family.config
    layer.self_attn = ChosenBlocksAttention(layer.self_attn, config)
    if layer.is_moe:
        routing = Routing(
            config["num_local_experts"],
            config["num_experts_per_tok"],
            scale=config["routed_scaling_factor"],
            addend=0.0,
        )
        gate, old = Router(routing, family.width), layer.block_sparse_moe
        layer.block_sparse_moe = RoutedBlock(gate, old.switch_mlp, old.shared_experts)
