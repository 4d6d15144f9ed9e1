"""Brings fields that only families with recurrent layers have into the words of ``wide.py``.

It builds nothing and knows no layer: a config comes in as a mapping that is this engine's own, and
is changed in place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stagelink_mlx.configs.experts import dense_before_sparse
from stagelink_mlx.refusal import refuse_field

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "settle_falcon",
    "settle_falcon_mamba",
    "settle_granite",
    "settle_griffin",
    "settle_jamba",
    "settle_kimi",
    "settle_lfm2",
    "settle_lightning",
    "settle_mamba",
    "settle_mamba2",
    "settle_nemotron",
    "settle_olmo",
]

# What a recurrence's time steps begin with, and how its residuals are held.
_STEP_TRAINING = (
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "time_step_floor",
    "time_step_init_scheme",
    "time_step_scale",
)
# Which of several equal programs runs.
_MAMBA_TRAINING = (
    "fused_add_norm",
    "pad_vocab_size_multiple",
    "ssm_cfg",
    "use_associative_scan",
    "use_mambapy",
)
_NEMOTRON_WORDS = (
    "chunk_size",
    "expand",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "num_logits_to_keep",
    # Its attention does not turn; steps have the heads' number of values.
    "partial_rotary_factor",
    "rope_theta",
    "time_step_rank",
    "use_mamba_kernels",
)
_JAMBA_WORDS = (
    "calc_logits_for_entire_prompt",
    "mamba_inner_layernorms",
    "n_ctx",
    "num_logits_to_keep",
    "use_mamba_kernels",
)
_OLMO_TRAINING = (
    "linear_a_log_max",
    "linear_a_log_min",
    "linear_dt_init_floor",
    "linear_dt_max",
    "linear_dt_min",
)
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLDER = {"mamba": "linear_attention", "attention": "full_attention"}
# Words of released files about training.
_LFM2_TRAINING = (
    "block_mlp_init_scale",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_use_xavier_init",
)


def settle_lfm2(config: dict[str, Any], layers: int) -> None:
    """LFM2: which layers attend is said by their kinds, or by their numbers."""
    _drop(config, _LFM2_TRAINING)
    _same(
        config,
        {
            "block_dim": "hidden_size",
            "conv_dim": "hidden_size",
            "conv_dim_out": "hidden_size",
            "num_heads": "num_attention_heads",
            "block_norm_eps": "norm_eps",
        },
    )
    numbers = config.pop("full_attn_idxs", None)
    kinds = config.get("layer_types")
    if numbers is not None:
        found = ["full_attention" if n in numbers else "conv" for n in range(layers)]
        if kinds is not None and kinds != found:
            raise refuse_field("full_attn_idxs", "the layers of layer_types", numbers)
        kinds = config["layer_types"] = found
    if isinstance(kinds, list):
        numbers = [n for n, one in enumerate(kinds) if one == "full_attention"]
        # mlx_lm looks for one, to make masks that the engine makes.
        config["full_attn_idxs"] = numbers or [layers]
    if "block_ffn_dim_multiplier" in config:
        # What mlx_lm calls the width of the rows in a feed-forward block.
        config["block_dim"] = config["hidden_size"]


def settle_granite(config: dict[str, Any], layers: int) -> None:
    """GraniteMoeHybrid: nothing turns unless RoPE is named; without experts one block is left."""
    _drop(config, ("init_method", "mamba_chunk_size"))
    config.setdefault("layer_types", ["linear_attention"] * layers)
    place = config.pop("position_embedding_type")
    if place not in (None, "nope", "rope"):
        raise refuse_field("position_embedding_type", "rope or nothing", place)
    config["position_embedding_type"] = place or "nope"
    _limit(config)
    _inner(config, config.pop("mamba_expand") * config["hidden_size"])
    if not config["num_local_experts"]:
        # What mlx_lm calls the one block.
        config["intermediate_size"] = config.get("shared_intermediate_size")


def settle_falcon(config: dict[str, Any], layers: int) -> None:
    """Falcon-H1: every layer attends and has a recurrence."""
    _drop(config, ("num_logits_to_keep",))
    config.setdefault("layer_types", ["hybrid"] * layers)
    _limit(config)
    inner = config.get("mamba_d_ssm")
    inner = config["mamba_expand"] * config["hidden_size"] if inner is None else inner
    config["mamba_d_ssm"] = inner
    _inner(config, inner)
    for key, count in (("mlp_multipliers", 2), ("ssm_multipliers", 5)):
        if config[key] is None:
            config[key] = [1.0] * count
        if not isinstance(config[key], list) or len(config[key]) != count:
            raise refuse_field(key, f"{count} numbers", config[key])


def settle_mamba(config: dict[str, Any], layers: int) -> None:
    """Mamba: no layer attends, and heads that a file says nevertheless mean nothing."""
    _scanned(config, layers, config.pop("expand") * config["hidden_size"])


def _scanned(config: dict[str, Any], layers: int, width: int) -> None:
    """Settle a model of recurrences of ``width`` values alone."""
    _drop(config, (*_STEP_TRAINING, *_MAMBA_TRAINING, "time_step_max", "time_step_min"))
    _same(
        config,
        {"d_model": "hidden_size", "n_layer": "num_hidden_layers", "d_inner": "intermediate_size"},
    )
    _recurrent_only(config, layers)
    said = config.setdefault("intermediate_size", width)
    if said != width:
        raise refuse_field("intermediate_size", f"{width} as expand says", said)
    if config["time_step_rank"] == "auto":
        config["time_step_rank"] = -(-config["hidden_size"] // 16)


def settle_falcon_mamba(config: dict[str, Any], layers: int) -> None:
    """Falcon Mamba: the released file's expand is another one than its inner width's."""
    # Tensors are held against what is said.
    width = config.pop("expand") * config["hidden_size"]
    _scanned(config, layers, config.get("intermediate_size", width))


def settle_mamba2(config: dict[str, Any], layers: int) -> None:
    """Mamba-2: as Mamba, with heads of its own."""
    width, heads = config.get("head_dim"), config.get("num_heads")
    settle_mamba(config, layers)
    _limit(config)
    _drop(config, ("chunk_size", "norm_before_gate"))
    inner = config["intermediate_size"]
    if not isinstance(width, int) or not isinstance(heads, int) or width * heads != inner:
        raise refuse_field("num_heads", f"heads of {inner} values in all", heads)
    config["ssm_state_size"] = config["ssm_state_size"] or config["state_size"]


def settle_jamba(config: dict[str, Any], layers: int) -> None:
    """Jamba: which layers attend, and which have experts, is said by two numbers each."""
    if config.get("mamba_inner_layernorms", True) is not True:
        raise refuse_field("mamba_inner_layernorms", "True", config["mamba_inner_layernorms"])
    _drop(config, (*_MAMBA_TRAINING, *_JAMBA_WORDS))
    period, offset = config.pop("attn_layer_period"), config.pop("attn_layer_offset")
    kinds = ["attention" if n % period == offset else "mamba" for n in range(layers)]
    config["attn_layer_period"], config["attn_layer_offset"] = period, offset
    config["layer_types"] = [
        "full_attention" if kind == "attention" else "linear_attention" for kind in kinds
    ]
    # mlx_lm looks for a layer of each kind, to make masks that the engine makes: one more of each.
    config["layers_block_type"] = [*kinds, "attention", "mamba"]
    # It adds the offset to a layer's number, where the model's own code subtracts it.
    period, offset = config["expert_layer_period"], config["expert_layer_offset"]
    config["expert_layer_offset"] = (period - offset) % period
    if config["mamba_dt_rank"] == "auto":
        config["mamba_dt_rank"] = -(-config["hidden_size"] // 16)


def settle_olmo(config: dict[str, Any], layers: int) -> None:
    """OLMo hybrid: every fourth layer attends where no kinds are said."""
    _drop(config, _OLMO_TRAINING)
    config.setdefault(
        "layer_types",
        ["linear_attention" if (n + 1) % 4 else "full_attention" for n in range(layers)],
    )


def settle_griffin(config: dict[str, Any], layers: int) -> None:
    """RecurrentGemma: block types go round; all that attend slide."""
    _drop(config, ("final_w_init_variance_scale", "w_init_variance_scale"))
    _same(config, {"lru_width": "hidden_size"})
    types = config.get("block_types") or config.pop("_block_types")
    types = types or ["recurrent", "recurrent", "attention"]
    if not isinstance(types, list) or not set(types) <= {"recurrent", "attention"}:
        raise refuse_field("block_types", "recurrent or attention", types)
    words = {"recurrent": "recurrent", "attention": "sliding_attention"}
    every = [types[n % len(types)] for n in range(layers)]
    # mlx_lm looks for a layer that attends, to make a mask that the engine makes: one more is one.
    config["block_types"] = [*every, "attention"]
    config["_block_types"] = None
    config["layer_types"] = [words[one] for one in every]
    config["sliding_window"] = config["attention_window_size"]


def settle_kimi(config: dict[str, Any], layers: int) -> None:
    """Kimi Linear: what is linear stands in a mapping of its own, or beside the rest."""
    if config["mla_use_nope"] is True:
        # Files say a theta by which nothing turns.
        _drop(config, ("rope_theta",))
    linear = dict(config.pop("linear_attn_config", None) or {})
    for key, field, usual in (
        ("head_dim", "linear_head_dim", 128),
        ("num_heads", "linear_num_heads", 32),
        ("short_conv_kernel_size", "linear_conv_kernel_dim", 4),
    ):
        linear[key] = linear.get(key, config.get(field, usual))
        config.pop(field, None)
    kinds = config.get("layer_types")
    if kinds is None and "kda_layers" in linear:
        kinds = [
            "linear_attention" if n + 1 in linear["kda_layers"] else "full_attention"
            for n in range(layers)
        ]
    if kinds is None:
        kinds = ["linear_attention" if n % 4 or not n else "full_attention" for n in range(layers)]
    config["layer_types"] = kinds
    # Counted from 1. mlx_lm looks for one, to make a mask that the engine makes.
    numbers = [n for n, kind in enumerate(kinds, 1) if kind == "linear_attention"] or [layers + 1]
    config["linear_attn_config"] = {**linear, "kda_layers": numbers}
    blocks = config.pop("mlp_layer_types", None)
    if blocks is not None:
        config["first_k_dense_replace"] = dense_before_sparse(blocks, layers)
    config.setdefault("first_k_dense_replace", 1)
    both = config.get("qk_nope_head_dim", 0) + config.get("qk_rope_head_dim", 0)
    if config.pop("qk_head_dim", both) != both:
        raise refuse_field("qk_head_dim", f"{both} as its parts say", "another")


def settle_lightning(config: dict[str, Any], layers: int) -> None:
    """Ling and Ring linear: the last layer of each group attends, and what no group has left."""
    _drop(config, ("linear_silu", "output_dropout", "router_dtype"))
    group = config.get("layer_group_size")
    if not isinstance(group, int) or not 1 <= group <= layers:
        raise refuse_field("layer_group_size", f"a number of 1 to {layers} layers", group)
    whole = layers // group * group
    kinds = [
        "full_attention" if (n + 1) % group == 0 or n >= whole else "linear_attention"
        for n in range(layers)
    ]
    config["layer_types"] = kinds
    heads = config.get("num_attention_heads")
    shared = config.get("num_key_value_heads", heads)
    if shared != heads and "linear_attention" in kinds:
        raise refuse_field("num_key_value_heads", f"{heads}, as linear layers have", shared)


def settle_nemotron(config: dict[str, Any], layers: int) -> None:
    """Nemotron-H: a layer is one thing only, and letters or words say which."""
    _drop(config, (*_STEP_TRAINING, *_NEMOTRON_WORDS))
    _same(config, {"norm_eps": "layer_norm_epsilon", "rms_norm_eps": "layer_norm_epsilon"})
    letters = config.get("hybrid_override_pattern")
    words = config.get("layers_block_type")
    if isinstance(letters, str):
        spelt = [_LETTERS.get(one, one) for one in letters]
        if words is not None and words != spelt:
            raise refuse_field("hybrid_override_pattern", "what layers_block_type says", letters)
        words = spelt
    if config.get("layer_types") is None:
        config["layer_types"] = words
    kinds = config["layer_types"]
    if isinstance(kinds, list):
        kinds = [_OLDER.get(one, one) if isinstance(one, str) else one for one in kinds]
        config["layer_types"] = config["layers_block_type"] = kinds
    config["hybrid_override_pattern"] = None
    config["num_hidden_layers"] = layers
    _limit(config)
    if config["time_step_limit"] != [0.0, math.inf]:
        raise refuse_field("time_step_limit", "no limits", config["time_step_limit"])
    # transformers limits steps from below, by what it calls their least value at the beginning.
    config["time_step_limit"] = [float(config["time_step_min"]), math.inf]
    if config.setdefault("mamba_proj_bias", config["use_bias"]) != config["use_bias"]:
        raise refuse_field("mamba_proj_bias", "the value of use_bias", config["mamba_proj_bias"])


def _recurrent_only(config: dict[str, Any], layers: int) -> None:
    """Say that all layers are recurrent, and one head that none of them has."""
    config["layer_types"] = ["linear_attention"] * layers
    config["num_attention_heads"] = config["num_key_value_heads"] = 1


def _limit(config: dict[str, Any]) -> None:
    """Bring the limits of time steps into two numbers; JSON has no word for no limit."""
    said = config.get("time_step_limit")
    if said is None:
        said = [0.0, math.inf]
    try:
        low, high = (
            float(one["__float__"]) if isinstance(one, dict) else float(one) for one in said
        )
    except (KeyError, TypeError, ValueError):
        raise refuse_field("time_step_limit", "two numbers", said) from None
    config["time_step_limit"] = [low, high]


def _inner(config: dict[str, Any], width: int) -> None:
    """Hold the heads of a Mamba-2 recurrence against its width."""
    heads, one = config.get("mamba_n_heads"), config["mamba_d_head"]
    if not isinstance(heads, int) or heads < 1:
        raise refuse_field("mamba_n_heads", "a whole number above 0", heads)
    config["mamba_d_head"] = one = width // heads if one == "auto" else one
    if one * heads != width:
        raise refuse_field("mamba_d_head", f"{heads} heads of {width} values in all", one)


def _drop(config: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Take out what changes no row."""
    for key in keys:
        config.pop(key, None)


def _same(config: dict[str, Any], names: Mapping[str, str]) -> None:
    """Take out fields that say what another one says.

    Raises:
        ConfigError: ``config_field`` where they say something else.
    """
    for key, usual in names.items():
        value = config.pop(key, None)
        if value is not None and value != config.get(usual):
            raise refuse_field(key, f"{config.get(usual)} as {usual} says", value)
