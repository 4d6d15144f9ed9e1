"""Reads the config of a family that the checkpoint's own table does not have, field by field.

It knows no layer. What it returns has the words of the families of the table, so that everything
behind it treats both alike.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from stagelink_mlx.configs.arguments import check_kinds
from stagelink_mlx.configs.declared import check_said
from stagelink_mlx.families.named import meant_type
from stagelink_mlx.refusal import refuse_field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.engine import Family
    from stagelink_mlx.families.recipes import Recipe

__all__ = ["understood"]

_SHARE: Final = "partial_rotary_factor"
_KINDS: Final = {"full_attention": "full", "sliding_attention": "sliding"}
# What transformers writes into every file, what is said of training and generation, and words of
# released files that no code of transformers reads.
_WORDS: Final = frozenset(
    (
        "_attn_implementation_autoset",
        "_name_or_path",
        "_num_labels",
        "_sliding_window_pattern",
        "architectures",
        "attention_softmax_in_fp32",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "auto_map",
        "cache_implementation",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "embed_dropout",
        "embedding_dropout",
        "eod_token_id",
        "gradient_checkpointing",
        "hidden_dropout",
        "hidden_dropout_prob",
        "id2label",
        "is_composition",
        "is_encoder_decoder",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "residual_dropout",
        "return_dict",
        "scale_attention_softmax_in_fp32",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tokenizer_class",
        "transformers_version",
    )
)
# Fields that mean something in families of the table alone.
_ELSEWHERE: Final = frozenset(
    (
        "full_attention_interval",
        "max_window_layers",
        "rope_interleave",
        "swiglu_alpha",
        "swiglu_limit",
        "use_sliding_window",
    )
)
# What scalings of positions are made of; another number would change them.
_ROPE: Final = frozenset(
    (
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "factor",
        "high_freq_factor",
        "long_factor",
        "low_freq_factor",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_theta",
        "rope_type",
        "short_factor",
        "truncate",
        "type",
    )
)


_FACTORS: Final = frozenset(("long_factor", "short_factor"))


def understood(family: Family, recipe: Recipe, file: Mapping[str, Any]) -> Family:
    """Return the family with a config in which everything that a layer needs is said.

    Args:
        family: As the checkpoint reads it; to it a field of the value null is none.
        recipe: How it is built.
        file: The config as the file has it, which may say null where something else is meant.

    Raises:
        ConfigError: ``config_field``, ``layer_types`` or ``rope_scaling``.
    """
    if recipe.meant is None:
        return family
    usual = _usual_words(family.config, recipe)
    check_said(usual)
    check_kinds(usual, recipe)
    said = {key: value for key, value in usual.items() if key not in _WORDS}
    if said.get("use_sliding_window", False) is False:
        # Left off, or not named: then the layers before those that slide say nothing. Any other
        # value is refused, alone too: transformers has a number of such layers of its own.
        for key in ("max_window_layers", "use_sliding_window"):
            said.pop(key, None)
    for key in sorted((_ELSEWHERE - recipe.made) & said.keys()):
        raise refuse_field(key, "no such field", said[key])
    text = file.get("text_config")
    nulls = [
        key for key, value in (text if isinstance(text, dict) else file).items() if value is None
    ]
    off = dict.fromkeys(recipe.words.get(key, key) for key in nulls)
    config = {**recipe.meant, **{key: None for key in off if key in recipe.meant}, **said}
    # Said at the top, or among rope_parameters, or nowhere.
    for key in (_SHARE, "rope_theta"):
        if key not in said:
            config.pop(key, None)
    turns = bool(recipe.rope) and not (recipe.stills_null and _is_still(config, off))
    if recipe.settle is not None:
        recipe.settle(config, family.layers)
    config["rope_parameters"] = _ropes(config, recipe) if turns else _unturned(config)
    heads = _count(config, "num_attention_heads")
    if config.get("head_dim") is None:
        config["head_dim"] = _count(config, "hidden_size") // heads
    config.setdefault("num_key_value_heads", heads)
    shared = _count(config, "num_key_value_heads")
    if heads % shared or _count(config, "head_dim") % 2:
        wanted = f"even heads that share the keys of a divisor of {heads}"
        raise refuse_field(
            "num_key_value_heads", wanted, f"{shared} of {config['head_dim']} values"
        )
    kinds = _kinds(config, family.layers, recipe)
    # A table is what says whether a head of its own is there.
    head = f"{recipe.head.rpartition('.')[2]}.weight"
    tied = said.get(
        "tie_word_embeddings",
        not any(one.endswith(head) or one == recipe.head for one in family.head_tensors()),
    )
    config["tie_word_embeddings"] = tied
    return dataclasses.replace(
        family,
        model_type=meant_type(family),
        config=config,
        layer_kinds=kinds,
        tied=tied,
    )


def _usual_words(config: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return a config in the words of the families of the table, where this family has others."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        usual = recipe.words.get(key, key)
        if found.setdefault(usual, value) != value:
            raise refuse_field(key, f"{found[usual]} as {usual} says", value)
    return found


def _is_still(config: dict[str, Any], off: Mapping[str, object]) -> bool:
    """Return whether a theta is null, beside which no other one stands; take it if so."""
    inside = config.get("rope_parameters")
    if isinstance(inside, dict) and "rope_theta" in inside:
        is_null = inside["rope_theta"] is None and inside.keys() <= {"rope_theta", "rope_type"}
    else:
        is_null = "rope_theta" in off and not inside
    if is_null:
        config.pop("rope_parameters", None)
    return is_null


def _unturned(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how nothing turns, in a family without RoPE or a config that says none."""
    for key in ("rope_theta", "rope_scaling", "rope_parameters", _SHARE):
        if config.get(key) is not None:
            raise refuse_field(key, "no such field", config[key])
    return {}


def _ropes(config: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Take how positions turn: one set of numbers, or one for each kind of layer."""
    nested = config.get("rope_parameters")
    if not isinstance(nested, dict) or not nested or not nested.keys() <= _KINDS.keys():
        one = _rope(config, recipe)
        if not recipe.plain_theta:
            return one
        if one["rope_theta"] != recipe.plain_theta:
            # transformers 5 gives layers that slide this one whatever the file says.
            raise refuse_field("rope_theta", str(recipe.plain_theta), one["rope_theta"])
        plain = {"rope_type": "default", "rope_theta": one["rope_theta"], _SHARE: one[_SHARE]}
        return {"full_attention": one, "sliding_attention": plain}
    for key in ("rope_theta", "rope_scaling", _SHARE):
        if config.get(key) is not None:
            raise refuse_field(key, "nothing beside rope_parameters of each kind", config[key])
    del config["rope_parameters"]
    return {kind: _rope({"rope_parameters": one}, recipe) for kind, one in nested.items()}


def _rope(config: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Take how positions turn out of the fields of transformers 5, or of the older ones."""
    found: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        one = config.pop(key, None)
        if one is None:
            continue
        if not isinstance(one, dict) or not one.keys() <= _ROPE:
            raise refuse_field(key, f"only {', '.join(sorted(_ROPE))}", one, reason="rope_scaling")
        kind = one.get("rope_type", one.get("type", "default"))
        plain = {k: v for k, v in one.items() if k != "type"} | {"rope_type": kind}
        for name, value in plain.items():
            if found.setdefault(name, value) != value:
                wanted = f"{name} {found[name]} as rope_scaling says"
                raise refuse_field(key, wanted, value, reason="rope_scaling")
    found.setdefault("rope_type", "default")
    for key in ("rope_theta", _SHARE):
        top = config.pop(key, None)
        if top is not None and found.setdefault(key, top) != top:
            raise refuse_field(key, f"{found[key]} as rope_parameters say", top)
    if found["rope_type"] == "longrope":
        _measure(found, config)
    elif not _FACTORS.isdisjoint(found):
        raise refuse_field("rope_type", "longrope beside factors of pairs", found["rope_type"])
    meant = recipe.meant or {}
    _number(found, "rope_theta", meant.get("rope_theta"))
    _number(found, _SHARE, meant.get(_SHARE, 1.0))
    return found


def _measure(rope: dict[str, Any], config: dict[str, Any]) -> None:
    """Take the length that a LongRoPE (arXiv 2402.13753) has its short factors up to."""
    key, whole = "original_max_position_embeddings", _count(config, "max_position_embeddings")
    rope[key] = config.pop(key, None) or rope.get(key) or whole
    _number(rope, "factor", whole / _count(rope, key))
    factors = rope.get("short_factor")
    if not isinstance(factors, list) or any(type(one) not in (int, float) for one in factors):
        raise refuse_field("short_factor", "a number for each pair", factors, "rope_scaling")


def _kinds(config: dict[str, Any], layers: int, recipe: Recipe) -> tuple[str, ...]:
    """Return the kind of each layer, and take the fields that say it."""
    window = config.get("sliding_window")
    every = config.pop("sliding_window_pattern", None) or recipe.slides_every
    usual = ["full_attention"] * layers
    if window is not None and recipe.slides_alike:
        usual = ["sliding_attention"] * layers
    elif window is not None and isinstance(every, int) and every:
        usual = [
            "sliding_attention" if (n + 1) % every else "full_attention" for n in range(layers)
        ]
    said = config.pop("layer_types", None)
    if said is None and isinstance(every, str):
        raise refuse_field("sliding_window_pattern", "layer_types beside it", every, "layer_types")
    kinds = usual if said is None else said
    right = isinstance(kinds, list) and len(kinds) == layers
    known = {**_KINDS, **(recipe.kinds or {})}
    if not right or any(kind not in known for kind in kinds):
        wanted = f"{' or '.join(known)} for each of {layers} layers"
        raise refuse_field("layer_types", wanted, kinds, "layer_types")
    if "sliding_attention" in kinds:
        _count(config, "sliding_window")
    return tuple(known[kind] for kind in kinds)


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise refuse_field(key, "a whole number above 0", value)
    return value


def _number(config: dict[str, Any], key: str, usual: float | None = None) -> None:
    value: Any = config.setdefault(key, usual)
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
        raise refuse_field(key, "a finite number above 0", value)
    config[key] = float(value)
