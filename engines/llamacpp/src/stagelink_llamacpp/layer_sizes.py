"""Refuses counts of heads and widths of feed-forward blocks with which no layer can be computed.

It looks at numbers alone; that tensors have these shapes llama.cpp checks when it loads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink_llamacpp.metadata import check_count, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink_llamacpp.architectures import Architecture

_HEADS, _HEADS_KV = "attention.head_count", "attention.head_count_kv"
_INNER, _EXPERT_INNER = "feed_forward_length", "expert_feed_forward_length"
# Where a file says them at all; else a head's width is a row's by the number of heads.
_HEAD_WIDTHS = ("attention.key_length", "attention.value_length")
_EXPERTS = "expert_count"


def check_sizes(known: Architecture, values: Mapping[str, Any], layers: int) -> None:
    """Refuse a size that is no number of at least 1 in a layer that has such a part.

    Args:
        known: The architecture.
        values: Metadata without prefix, of which `metadata.check_numbers` has seen its own.
        layers: Layers without the drafter's, whose sizes nobody here computes with.

    Raises:
        ConfigError: ``gguf_metadata``.
    """
    prefix = f"{known.name}."
    for key in (_HEADS, _HEADS_KV):
        # Without a number of its own llama.cpp takes that of the queries.
        if key == _HEADS or key in values:
            _check_each(values, key, prefix, layers, some=known.recurrent)
    for key in _HEAD_WIDTHS:
        if key in values:
            _check_each(values, key, prefix, layers)
    _check_each(values, _INNER, prefix, _dense_layers(known, values, layers))


def check_groups(values: Mapping[str, Any], prefix: str) -> None:
    """Refuse heads of queries that cannot share those of keys and values evenly.

    All layers have the same numbers; see `check_sizes` and `metadata.check_lists`.

    Raises:
        ConfigError: ``gguf_metadata``.
    """
    heads, shared = (_first(values.get(key, values[_HEADS])) for key in (_HEADS, _HEADS_KV))
    if heads % shared:
        wanted = f"a multiple of the {shared} of {prefix}{_HEADS_KV}"
        raise wrong(prefix + _HEADS, wanted, heads)


def _dense_layers(known: Architecture, values: Mapping[str, Any], layers: int) -> int:
    """Return how many layers, from the first on, have the width that the file says for all."""
    experts = values.get(_EXPERTS, 0)
    if type(experts) is not int or experts < 1 or not _first(values.get(_EXPERT_INNER, 0)):
        return layers
    dense: int = values.get(known.dense_first_key, 0) if known.dense_first_key else 0
    return min(dense, layers)


def _check_each(
    values: Mapping[str, Any], key: str, prefix: str, layers: int, *, some: bool = False
) -> None:
    """Refuse a number below 1 of the first ``layers`` layers.

    With ``some`` a list may have a 0 beside other numbers: recurrent layers have no heads.
    """
    value = values.get(key)
    if not layers:
        return
    if not isinstance(value, list):
        check_count(value, prefix + key)
        return
    own = value[:layers]
    for at, one in enumerate(own):
        if not (some and type(one) is int and one == 0 and any(own)):
            check_count(one, prefix + key, where=f" in layer {at}")


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value
