"""Fields of LongCat-Flash: brought into the usual words, or refused by name.

It knows no layer.
"""

from __future__ import annotations

from typing import Any, Final

from stagelink_mlx.refusal import refuse_field

__all__ = ["TWICE", "settle_longcat", "settle_ngrams"]

# What this engine calls layers that attend twice.
TWICE: Final = "twice_attention"


def settle_longcat(config: dict[str, Any], layers: int) -> None:
    """Say that every layer attends twice; take the widths of heads that follow from others."""
    plain: Any = config.get("qk_nope_head_dim")
    turned: Any = config.get("qk_rope_head_dim")
    for key, value in (("qk_nope_head_dim", plain), ("qk_rope_head_dim", turned)):
        if type(value) is not int or value < 1:
            raise refuse_field(key, "a whole number above 0", value)
    # transformers makes the frequencies by the first of these.
    for key, wanted in (("head_dim", turned), ("qk_head_dim", plain + turned)):
        said = config.pop(key, None)
        if said not in (None, wanted):
            raise refuse_field(key, str(wanted), said)
    config["head_dim"] = turned
    if type(config.get("q_lora_rank")) is not int:
        raise refuse_field("q_lora_rank", "a whole number", config.get("q_lora_rank"))
    idle, experts = config["zero_expert_num"], config.get("n_routed_experts")
    config["zero_expert_num"] = idle = idle or 0
    if type(idle) is not int or idle < 0:
        raise refuse_field("zero_expert_num", "a whole number", idle)
    used, every = config.get("moe_topk"), experts + idle if type(experts) is int else 0
    if type(used) is not int or not 1 <= used <= every:
        raise refuse_field("moe_topk", f"1 to {every}, the number of experts", used)
    config["layer_types"] = [TWICE] * layers


def settle_ngrams(config: dict[str, Any], layers: int) -> None:
    """LongCat-Flash-Lite: as above, and the tables of runs of tokens."""
    settle_longcat(config, layers)
    for key, least in (
        ("emb_neighbor_num", 2),
        ("emb_split_num", 1),
        ("ngram_vocab_size_ratio", 1),
        # No token behind it reads those before.
        ("eos_token_id", 0),
    ):
        value = config.get(key)
        if type(value) is not int or value < least:
            raise refuse_field(key, f"a whole number of at least {least}", value)
    tables = config["emb_split_num"] * (config["emb_neighbor_num"] - 1)
    if config["hidden_size"] % tables:
        raise refuse_field("emb_split_num", f"a divisor of {config['hidden_size']}", tables)
