"""Brings the nested fields of DBRX's config into the words of ``wide.py``, or refuses them.

It builds nothing and knows no layer.
"""

from __future__ import annotations

from typing import Any, Final

from stagelink_mlx.refusal import refuse_field

__all__ = ["DBRX_WORDS", "settle_dbrx"]

DBRX_WORDS: Final = {
    "d_model": "hidden_size",
    "max_seq_len": "max_position_embeddings",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
}
# What transformers writes into every mapping of a config, and what is said of training.
_WORDS: Final = frozenset(
    (
        "_name_or_path",
        "architectures",
        "attn_pdrop",
        "chunk_size_feed_forward",
        "dtype",
        "id2label",
        "is_encoder_decoder",
        "label2id",
        "model_type",
        "moe_jitter_eps",
        "moe_loss_weight",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "torch_dtype",
    )
)
_ATTENTION: Final[dict[str, Any]] = {"clip_qkv": None, "kv_n_heads": 1, "rope_theta": None}
_FEED_FORWARD: Final[dict[str, Any]] = {
    "ffn_act_fn": None,
    "ffn_hidden_size": 3584,
    "hidden_size": None,
    "moe_normalize_expert_weights": 1.0,
    "moe_num_experts": 4,
    "moe_top_k": 1,
}


def settle_dbrx(config: dict[str, Any], layers: int) -> None:
    """Take the numbers of attention and of experts out of their two mappings."""
    del layers
    attention = _nested(config, "attn_config", _ATTENTION)
    experts = _nested(config, "ffn_config", _FEED_FORWARD)
    config |= {"attn_config": attention, "ffn_config": experts}
    theta, shared = attention["rope_theta"], attention["kv_n_heads"]
    if type(theta) not in (int, float):
        raise refuse_field("attn_config.rope_theta", "a number", theta)
    # One that stands elsewhere, too, has to be the same; that of rope_parameters is compared there.
    if config.setdefault("rope_theta", theta) != theta:
        raise refuse_field("rope_theta", f"{theta} as attn_config says", config["rope_theta"])
    said = config.setdefault("num_key_value_heads", shared)
    if said != shared:
        raise refuse_field("num_key_value_heads", f"{shared} as attn_config says", said)
    bound = attention["clip_qkv"]
    if type(bound) not in (int, float) or bound <= 0:
        # No code runs the family without one.
        raise refuse_field("attn_config.clip_qkv", "a number above 0", bound)
    act = experts.pop("ffn_act_fn")
    if act not in (None, {"name": "silu"}):
        raise refuse_field("ffn_config.ffn_act_fn", "{'name': 'silu'}", act)
    width = experts.pop("hidden_size")
    if width not in (None, config.get("hidden_size")):
        raise refuse_field("ffn_config.hidden_size", str(config.get("hidden_size")), width)
    norm = experts["moe_normalize_expert_weights"]
    if norm not in (None, 1):
        raise refuse_field("ffn_config.moe_normalize_expert_weights", "1 or none", norm)
    inner, count = experts["ffn_hidden_size"], experts["moe_num_experts"]
    for key, value, most in (
        ("ffn_hidden_size", inner, inner),
        ("moe_num_experts", count, count),
        ("moe_top_k", experts["moe_top_k"], count),
    ):
        if type(value) is not int or not 1 <= value <= most:
            raise refuse_field(f"ffn_config.{key}", f"a whole number of 1 to {most}", value)


def _nested(config: dict[str, Any], name: str, usual: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a mapping of the config, with what is meant where one is left out."""
    said = config.pop(name, None)
    said = {} if said is None else said
    if not isinstance(said, dict):
        raise refuse_field(name, "a mapping", said)
    left = {key: value for key, value in said.items() if key not in _WORDS}
    for key in sorted(left.keys() - usual.keys()):
        raise refuse_field(f"{name}.{key}", "no such field", left[key])
    return {**usual, **left}
