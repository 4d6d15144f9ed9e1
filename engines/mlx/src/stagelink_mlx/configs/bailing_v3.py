"""Brings the fields of Ling 3's config into the words of ``wide.py``, or refuses them by name.

It builds nothing and knows no layer.
"""

from __future__ import annotations

from typing import Any, Final

from stagelink_mlx.configs.experts import dense_before_sparse
from stagelink_mlx.refusal import refuse_field

__all__ = ["BAILING_V3_LIMITS", "BAILING_V3_WORDS", "settle_bailing_v3"]

BAILING_V3_LIMITS: Final = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
# Those of transformers 5, with those of the released files.
BAILING_V3_WORDS: Final = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "n_shared_experts": "num_shared_experts",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_local_experts": "num_experts",
    "num_mtp_layers": "num_nextn_predict_layers",
}
# Of training and of drafters, and words of released files that none of their code reads.
_WORDS: Final = (
    "group_norm_size",
    "linear_silu",
    "mtp_loss_scaling_factor",
    "mtp_use_kda",
    "num_kv_heads_for_linear_attn",
    "output_dropout",
    "partial_rotary_factor",
    "router_dtype",
    "use_nGPT",
    "use_qk_norm",
)
_LINEAR: Final = {
    "linear_conv_kernel_dim": "short_conv_kernel_size",
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_attention_heads",
}


def settle_bailing_v3(config: dict[str, Any], layers: int) -> None:
    """Say which layers attend and which have experts, and how wide heads of the others are."""
    for key in _WORDS:
        config.pop(key, None)
    if "rope_theta" in (config.get("rope_parameters") or ()):
        # transformers writes its default beside it, and reads it no more.
        config.pop("rope_theta", None)
    # transformers writes the width of heads that turn as head_dim, and this beside it.
    for key, usual in _LINEAR.items():
        config[usual] = config.pop(key, config[usual])
    keys = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    for key, value in (("qk_head_dim", keys), ("rotary_dim", config["qk_rope_head_dim"])):
        said = config.pop(key, value)
        if said != value:
            raise refuse_field(key, f"{value} as its parts say", said)
    if config["moe_shared_expert_intermediate_size"] is None:
        config["moe_shared_expert_intermediate_size"] = config["moe_intermediate_size"]
    blocks = config.pop("mlp_layer_types", None)
    if blocks is not None:
        config["first_k_dense_replace"] = dense_before_sparse(blocks, layers)
    _say_kinds(config, layers)
    for key in BAILING_V3_LIMITS:
        config[key] = _limits(key, config[key], layers)


def _say_kinds(config: dict[str, Any], layers: int) -> None:
    """Say which layers attend, the last of each group.

    Raises:
        ConfigError: ``layer_types`` for another order; ``config_field`` for a last group that is
            not whole, of which transformers and mlx_lm make different layers.
    """
    said, group = config.get("layer_types"), config["layer_group_size"]
    if said is not None:
        full = said.index("full_attention") if "full_attention" in said else layers
        group = config["layer_group_size"] = full + 1
    if type(group) is not int or group < 1 or layers % group:
        raise refuse_field("layer_group_size", f"a divisor of {layers} layers", group)
    kinds = ["linear_attention" if (n + 1) % group else "full_attention" for n in range(layers)]
    if said not in (None, kinds):
        wanted = f"full_attention for every layer of {group}, and no other"
        raise refuse_field("layer_types", wanted, said, "layer_types")
    config["layer_types"] = kinds


def _limits(key: str, said: object, layers: int) -> list[float] | None:
    """Return what bounds the activation of each layer's experts; 0 is no bound."""
    if said is None:
        return None
    numbers = said if isinstance(said, list) else []
    right = len(numbers) >= layers and all(
        one is None or (type(one) in (int, float) and one >= 0) for one in numbers
    )
    if not right:
        raise refuse_field(key, f"a number for each of {layers} layers", said)
    return [float(one or 0) for one in numbers[:layers]]
