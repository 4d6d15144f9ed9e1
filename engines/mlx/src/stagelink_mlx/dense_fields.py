"""Fields that single dense families have: brought into the usual words, or refused by name.

Each function takes the config of ``wide.py`` with what is meant filled in, and changes it. It
knows no layer.
"""

from __future__ import annotations

from typing import Any

from stagelink_mlx.wide import refuse_field

__all__ = ["base_width", "fourfold", "longer_positions", "one_key_head", "rotary_values"]


def fourfold(config: dict[str, Any], layers: int) -> None:
    """Take the inner width of blocks that mlx_lm makes four times as wide as the row."""
    del layers
    inner, width = config.pop("intermediate_size", None), config.get("hidden_size")
    if inner is not None and (type(width) is not int or inner != 4 * width):
        raise refuse_field("intermediate_size", "four times hidden_size", inner)


def one_key_head(config: dict[str, Any], layers: int) -> None:
    """GPT-BigCode: one head of keys for all, or one each; an inner width, or four rows."""
    del layers
    heads = 1 if config["multi_query"] is True else config.get("num_attention_heads")
    said = config.get("num_key_value_heads")
    if said not in (None, heads):
        raise refuse_field("num_key_value_heads", f"{heads} as multi_query says", said)
    config["num_key_value_heads"] = heads
    if config.get("intermediate_size") is None and type(config.get("hidden_size")) is int:
        config["intermediate_size"] = 4 * config["hidden_size"]


def rotary_values(config: dict[str, Any], layers: int) -> None:
    """GPT-J: how many values of a head turn, which is none said where all do."""
    fourfold(config, layers)
    turned = config.get("rotary_dim")
    if turned is None:
        config["rotary_dim"] = config["hidden_size"] // config["num_attention_heads"]
    elif type(turned) is not int or turned < 2 or turned % 2:
        raise refuse_field("rotary_dim", "an even number above 0", turned)


def longer_positions(config: dict[str, Any], layers: int) -> None:
    """Ministral 3: what the queries of far positions are multiplied by stands with the RoPE."""
    del layers
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict):
        raise refuse_field("rope_parameters", "those of the family", rope)
    rope = dict(rope)
    beta, _ = rope.pop("llama_4_scaling_beta", None), rope.pop("max_position_embeddings", None)
    original = rope.get("original_max_position_embeddings")
    if type(beta) not in (int, float) or type(original) is not int or original < 1:
        wanted = "llama_4_scaling_beta and original_max_position_embeddings"
        raise refuse_field("rope_parameters", wanted, rope)
    config |= {"rope_parameters": rope, "llama_4_scaling_beta": float(beta)}


def base_width(config: dict[str, Any], layers: int) -> None:
    """MiniCPM: rows are divided by how much wider they are than those of the first model."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("dim_model_base") is None:
        config["dim_model_base"] = width
    if config.get("scale_depth") is None:
        config["scale_depth"] = layers**0.5
    config["logits_divisor"] = width / config["dim_model_base"]
    keys = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    for key, value in (("v_head_dim", width // heads), ("qk_head_dim", keys)):
        said = config.pop(key, None)
        if said not in (None, value):
            raise refuse_field(key, str(value), said)
