"""The text of Kimi K3 as data: a residual stream in blocks, delta and latent attention, experts.

It reads no config; ``configs/wide.py`` does. mlx_lm alone defines it: fields and what is meant
without them are its arguments'.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink_mlx.configs.hybrid import settle_kimi
from stagelink_mlx.families.recipes import Recipe, fixed_fields
from stagelink_mlx.refusal import refuse_field

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KIMI_K3_RECIPES"]

_LINEAR: Final = frozenset(
    (
        "full_attn_layers",
        "gate_lower_bound",
        "head_dim",
        "kda_layers",
        "num_heads",
        "short_conv_kernel_size",
        "use_full_rank_gate",
    )
)


def settle_kimi_k3(config: dict[str, Any], layers: int) -> None:
    """Say which layers attend to all positions; refuse what is said of others."""
    linear = config.get("linear_attn_config")
    if not isinstance(linear, dict) or not linear.keys() <= _LINEAR:
        wanted = f"a mapping of {', '.join(sorted(_LINEAR))}"
        raise refuse_field("linear_attn_config", wanted, linear)
    settle_kimi(config, layers)
    numbers = [n for n, kind in enumerate(config["layer_types"], 1) if kind == "full_attention"]
    if linear.get("full_attn_layers", numbers) != numbers:
        said = linear["full_attn_layers"]
        raise refuse_field("full_attn_layers", f"{numbers} as kda_layers say", said)


KIMI_K3_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "kimi_k3": Recipe(
            "kimi_k3",
            fixed_fields(
                attention_bias=False,
                hidden_act="situ",
                mla_use_nope=True,
                moe_router_activation_func="sigmoid",
                use_grouped_topk=True,
            ),
            "TextArgs",
            outer="language_model.",
            meant={
                "activation_situ_beta": None,
                "activation_situ_linear_beta": None,
                "attn_res_block_size": None,
                "first_k_dense_replace": 0,
                "hidden_act": "situ",
                "intermediate_size": 33792,
                "latent_moe_use_norm": False,
                "max_position_embeddings": 1048576,
                "mla_use_nope": True,
                "mla_use_output_gate": False,
                "moe_intermediate_size": None,
                "moe_layer_freq": 1,
                "moe_renormalize": True,
                "moe_router_activation_func": "sigmoid",
                "num_expert_group": 1,
                "num_experts": None,
                "num_experts_per_token": 16,
                "num_shared_experts": 0,
                "q_lora_rank": None,
                "rms_norm_eps": 1e-5,
                "routed_expert_hidden_size": None,
                "routed_scaling_factor": 1.0,
                "tie_word_embeddings": False,
                "topk_group": 1,
                "use_grouped_topk": True,
            },
            rope="",
            kinds=MappingProxyType({"linear_attention": "linear"}),
            mixer=("input_layernorm", "self_attn"),
            array_mask=True,
            dense=(".kv_b_proj.", "res_proj."),
            layout="kimi_k3",
            renames=(
                (".block_sparse_moe.", ".mlp."),
                (".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
                *((f".{one}_conv1d.", f".{one}_conv.conv.") for one in "qkv"),
                *(
                    (f"{one}_res.{part}_weight", f"{one}_res_{part}.weight")
                    for one in ("self_attention", "mlp", "output_attn")
                    for part in ("norm", "proj")
                ),
            ),
            has_blocks=True,
            drafter=("mtp.",),
            settle=settle_kimi_k3,
        ),
    }
)
