"""Brings the fields of MiniMax-M3's text into the words of ``wide.py``, or refuses them by name.

It builds nothing and knows no layer.
"""

from __future__ import annotations

from typing import Any, Final

from stagelink_mlx.refusal import refuse_field

__all__ = ["settle_minimax_m3"]

_SHARE: Final = "partial_rotary_factor"
_NESTED: Final = "sparse_attention_config"
# What the released file calls in a mapping of its own, with the words of transformers 5.
_INDEX: Final = {
    "sparse_block_size": "index_block_size",
    "sparse_index_dim": "index_head_dim",
    "sparse_local_block": "index_local_blocks",
    "sparse_num_index_heads": "index_n_heads",
    "sparse_topk_blocks": "index_topk_blocks",
}
_FIXED: Final = {
    "sparse_init_block": 0,
    "sparse_score_type": "max",
    "use_sparse_attention": True,
}


def settle_minimax_m3(config: dict[str, Any], layers: int) -> None:
    """Say of each layer whether it chooses blocks and has experts, and how much of a head turns."""
    said = config.pop(_NESTED, None)
    nested = {} if said is None else dict(said) if isinstance(said, dict) else said
    if not isinstance(nested, dict):
        raise refuse_field(_NESTED, "a mapping", said)
    for key, right in _FIXED.items():
        value = nested.pop(key, right)
        if value != right:
            raise refuse_field(f"{_NESTED}.{key}", repr(right), value)
    for key, usual in _INDEX.items():
        # It goes before what stands outside.
        config[usual] = nested.pop(key, config[usual])
    chooses = _each(nested, "sparse_attention_freq", layers)
    without = nested.pop("sparse_disable_index_value", None)
    if without not in (None, chooses, [1] * layers):
        wanted = "1 for every layer that chooses blocks"
        raise refuse_field(f"{_NESTED}.sparse_disable_index_value", wanted, without)
    for key in sorted(nested):
        raise refuse_field(f"{_NESTED}.{key}", "no such field", nested[key])
    _kinds(config, "layer_types", chooses, ("full_attention", "minimax_m3_sparse"), layers)
    experts = _each(config, "moe_layer_freq", layers)
    blocks = experts or [1] * layers
    _kinds(config, "mlp_layer_types", experts, ("dense", "sparse"), layers)
    if config.get("mlp_layer_types") is None:
        config["mlp_layer_types"] = ["sparse" if one else "dense" for one in blocks]
    _check_index(config)
    _check_turned(config)


def _each(config: dict[str, Any], key: str, layers: int) -> list[int] | None:
    """Take a list that says 1 or 0 of each layer, where there is one."""
    said = config.pop(key, None)
    right = isinstance(said, list) and len(said) == layers and all(one in (0, 1) for one in said)
    if said is not None and not right:
        raise refuse_field(key, f"1 or 0 for each of {layers} layers", said)
    return said if isinstance(said, list) else None


def _kinds(
    config: dict[str, Any], key: str, numbers: list[int] | None, words: tuple[str, str], layers: int
) -> None:
    """Hold a list of words against one of numbers, and put it in where it is missing.

    Raises:
        ConfigError: ``config_field`` for other words, or another number of them.
    """
    said = config.get(key)
    if said is None and numbers is not None:
        said = config[key] = [words[one] for one in numbers]
    if said is None:
        return
    if not isinstance(said, list) or len(said) != layers or not set(said) <= set(words):
        raise refuse_field(key, f"{' or '.join(words)} for each of {layers} layers", said)
    if numbers is not None and said != [words[one] for one in numbers]:
        raise refuse_field(key, "what the list of numbers says", said)


def _check_index(config: dict[str, Any]) -> None:
    """Refuse numbers of an indexer that no code computes with."""
    for key in _INDEX.values():
        least = 0 if key == "index_local_blocks" else 1
        if type(config[key]) is not int or config[key] < least:
            raise refuse_field(key, f"a whole number from {least} on", config[key])
    local, used = config["index_local_blocks"], config["index_topk_blocks"]
    if local > used:
        raise refuse_field("index_local_blocks", f"at most the {used} of index_topk_blocks", local)
    heads, index_heads = config.get("num_attention_heads"), config["index_n_heads"]
    if type(heads) is int and heads % index_heads:
        raise refuse_field("index_n_heads", f"a divisor of {heads} heads", index_heads)


def _check_turned(config: dict[str, Any]) -> None:
    """Take how many values of a head turn as a share; the two words for it have to agree."""
    turned, width = config.pop("rotary_dim", None), config.get("head_dim")
    places = (config, config.get("rope_parameters") or {}, config.get("rope_scaling") or {})
    share: Any = next((one[_SHARE] for one in places if one.get(_SHARE) is not None), None)
    if type(width) is not int or width < 1:
        raise refuse_field("head_dim", "a whole number above 0", width)
    if type(share) not in (int, float) or not 0 < share <= 1:
        # Without it transformers turns whole heads, and mlx_lm what rotary_dim says.
        raise refuse_field(_SHARE, "a share of a head", share)
    if turned is not None and turned != int(width * share):
        raise refuse_field("rotary_dim", f"{int(width * share)} as {_SHARE} says", turned)
    index, least = config["index_head_dim"], int(width * share)
    if index < least or index % 2:
        raise refuse_field("index_head_dim", f"an even number from {least} values on", index)
