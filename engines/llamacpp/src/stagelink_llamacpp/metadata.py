"""Reads a GGUF file's metadata under one architecture's prefix, and refuses what no file has.

It knows which lists have an element a layer, and decides no cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.engine import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

EPSILON = "attention.layer_norm_rms_epsilon"
LAYERS_MAX = 512
# What whole numbers of the metadata stay below.
_WHOLE_MAX = 1 << 31
_FLOAT32_MAX = float(np.finfo(np.float32).max)
# What the rules compute with, where a file has it: whole numbers of 0 on, and finite ones.
_WHOLE = (
    "attention.sliding_window", "attention.q_lora_rank", "expert_gating_func",
    "full_attention_interval", "leading_dense_block_count", "nextn_predict_layers",
)  # fmt: skip
_FINITE = ("embedding_scale", "final_logit_softcapping", "logit_scale")
# Lists with one element a layer.
_PER_LAYER = frozenset((
    "feed_forward_length", "attention.head_count", "attention.head_count_kv", "expert_used_count",
    "expert_feed_forward_length", "attention.sliding_window_pattern", "attention.recurrent_layers",
    "swiglu_clamp_exp", "swiglu_clamp_shexp",
))  # fmt: skip
# Of these the library takes the first element for all layers in one place, and each layer's own in
# another, in the architectures that have a rule: a slice would have another first one.
_ALIKE = (
    "attention.head_count", "attention.head_count_kv", "expert_used_count",
    "expert_feed_forward_length",
)  # fmt: skip
# Elements that this list lacks are false, and those that it has too many are not read.
_ANY_LENGTH = "attention.sliding_window_pattern"
# Lists that are something else, whatever their length.
_NOT_PER_LAYER = frozenset(("rope.dimension_sections", "deepstack_mapping"))


def check_numbers(values: Mapping[str, Any], prefix: str) -> None:
    """Refuse a value of another type than the rules compute with."""
    for key in _WHOLE:
        value = values.get(key, 0)
        if type(value) is not int or not 0 <= value < _WHOLE_MAX:
            raise wrong(prefix + key, f"0 to {_WHOLE_MAX - 1}", value)
    for key in (EPSILON, *_FINITE):
        value = values.get(key, None if key == EPSILON else 0.0)
        # Not a number is not below anything either.
        if type(value) is not float or not abs(value) <= _FLOAT32_MAX:
            raise wrong(prefix + key, "a finite number", value)


def check_lists(values: Mapping[str, Any], count: int, prefix: str) -> None:
    """Refuse a list that no rule can slice; ``count`` is the file's number of layers."""
    for key, value in values.items():
        if not isinstance(value, list) or key in _NOT_PER_LAYER:
            continue
        if key == _ANY_LENGTH:
            if len(value) > LAYERS_MAX:
                raise wrong(prefix + key, f"at most {LAYERS_MAX} elements", f"{len(value)}")
        elif key in _PER_LAYER:
            if len(value) != count:
                raise wrong(prefix + key, f"{count} elements", f"{len(value)}")
        elif len(value) == count:
            raise refused(f"expected no list a layer without a rule, got {prefix}{key}")
    layers = count - values.get("nextn_predict_layers", 0)
    for key in _ALIKE:
        value = values.get(key)
        if isinstance(value, list) and any(one != value[0] for one in value[:layers]):
            raise refused(f"expected one {prefix}{key} for all layers, got {repr(value)[:80]}")


def sliced(key: str, value: object, first: int, end: int, count: int) -> object:
    """Return what ``value`` is for layers ``first..end`` of a file with ``count`` layers."""
    if not isinstance(value, list) or key not in _PER_LAYER or len(value) != count:
        return value
    return value[first:end]


def count_of(values: Mapping[str, Any], key: str, architecture: str, most: int) -> int:
    """Return a whole number of 1 to ``most``."""
    return check_count(values.get(key), f"{architecture}.{key}", most)


def check_count(value: object, key: str, most: int = _WHOLE_MAX - 1, where: str = "") -> int:
    """Return a value that is a whole number of 1 to ``most``; ``key`` is the file's, with prefix.

    Raises:
        ConfigError: ``gguf_metadata``; ``where`` in the file follows what was expected.
    """
    if type(value) is not int or not 1 <= value <= most:
        raise wrong(key, f"1 to {most}{where}", value)
    return value


def vocab_of(metadata: Mapping[str, Any], prefix: str) -> int:
    """Return the number of tokens."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else metadata.get(f"{prefix}vocab_size")
    if type(count) is not int or not 1 <= count < _WHOLE_MAX:
        raise wrong("tokenizer.ggml.tokens", "a list of tokens", count)
    return count


def file_values(architecture: str, own: Mapping[str, Any], vocab: int) -> dict[str, Any]:
    """All metadata of a file of one's own: no tokenizer, and so many rows in the token table."""
    return {
        "general.architecture": architecture,
        "general.quantization_version": 2,
        **{f"{architecture}.{key}": value for key, value in own.items()},
        f"{architecture}.vocab_size": vocab,
        "tokenizer.ggml.model": "no_vocab",
    }


def refused(text: str) -> ConfigError:
    """Say what another engine is needed for."""
    advice = "use an engine that stagelink inspect names, else the model's safetensors folder"
    return ConfigError(f"llamacpp engine: {text}; {advice}", reason="engine_family")


def wrong(key: str, expected: str, got: object) -> ConfigError:
    """Say what a key should have been."""
    text = f"llamacpp engine: expected {key} to be {expected}, got {repr(got)[:80]}"
    return ConfigError(f"{text}; fetch the file again", reason="gguf_metadata")
