"""Ling and Ring 2.5, whose files say bailing_hybrid and that mlx_lm alone defines, as data.

It reads no config; ``configs/wide.py`` and ``configs/bailing_hybrid.py`` do.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.bailing_hybrid import settle_bailing_hybrid
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BAILING_HYBRID_RECIPES"]

BAILING_HYBRID_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "bailing_hybrid": Recipe(
            "bailing_hybrid",
            fixed_fields(
                hidden_act="silu",
                norm_head=False,
                norm_softmax=False,
                use_rmsnorm=True,
            ),
            meant={
                "moe_router_enable_expert_bias": True,
                "moe_shared_expert_intermediate_size": None,
                "norm_topk_prob": True,
                "num_nextn_predict_layers": 0,
                "partial_rotary_factor": 0.5,
                "q_lora_rank": None,
                "rope_interleave": True,
                "score_function": "sigmoid",
                "tie_word_embeddings": False,
                "use_bias": False,
                "use_qk_norm": True,
                "use_qkv_bias": False,
            },
            array_mask=True,
            dense=(".kv_b_proj.",),
            layout="latent",
            embedding="word_embeddings",
            renames=(
                (".mlp.gate.gate_proj.", ".mlp.gate."),
                (".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"),
            ),
            attention="attention",
            # Each kind of layer turns another number of values: parts/bailing_hybrid.py turns them.
            rope="turned_by_layer",
            kinds=MappingProxyType({"linear_attention": "linear"}),
            mixer=("input_layernorm", "attention"),
            call="offset",
            made=frozenset(("mtp_loss_scaling_factor", "rope_interleave")),
            settle=settle_bailing_hybrid,
        ),
    }
)
