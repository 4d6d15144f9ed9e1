"""Holds fields of a config against what mlx_lm's arguments are declared as, and sizes it can build.

It knows no family. A config is a stranger's: what stands in it is counted with, and becomes sizes
of matrices, so that kinds, signs and sizes are settled before either.
"""

from __future__ import annotations

import contextlib
import math
import types
import typing
from typing import TYPE_CHECKING, Any, Final

from stagelink.engine import CheckpointError, ConfigError
from stagelink_mlx.refusal import ADVICE, refuse_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["check_declared", "check_said", "laid_out", "understandable"]

# The largest float32, which all numbers are computed with.
_FLOAT_MAX: Final = 3.4028234e38
# MLX's sizes are 32-bit numbers.
_NUMBER_MAX: Final = 2**31 - 1
_ROPE: Final = ("rope_parameters", "rope_scaling")
_ROPE_WORDS: Final = frozenset(("rope_type", "type"))
# Held by check_said, or of other kinds in files.
_SAID_OTHERWISE: Final = frozenset((*_ROPE, "layer_types", "sliding_window_pattern"))
# Where -1 means none.
_SIGNED: Final = ("_id", "_ids", "_idx", "_index")
# 0 means none there.
_ROPE_FACTORS: Final = frozenset(("attention_factor", "mscale", "mscale_all_dim"))
_ROPE_OTHERS: Final = frozenset(("long_factor", "short_factor", "truncate", "mrope_section"))
_SHARE: Final = "partial_rotary_factor"
_WORDS: Final = {bool: "true or false", dict: "a mapping", int: "a whole number", list: "a list"}
# What arithmetic on fields raises, and what MLX does for a size that there is not.
_FAULTS: Final = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError),
    *(RuntimeError, TypeError, ValueError),
)


def check_said(config: Mapping[str, Any]) -> None:
    """Refuse what is of no use in any family: endless numbers, kinds of layers that are no words.

    Raises:
        ConfigError: ``config_field``, ``layer_types`` or ``rope_scaling``.
    """
    for key, value in config.items():
        if isinstance(value, float) and not _is_finite(value):
            raise refuse_field(key, "a finite number", value)
        if key in ("layer_types", "mlp_layer_types") and value is not None:
            right = isinstance(value, list) and all(isinstance(one, str) for one in value)
            if not right:
                reason = "layer_types" if key == "layer_types" else "config_field"
                raise refuse_field(key, "a list of kinds of layers", value, reason)
    for key in _ROPE:
        said = config.get(key)
        if said is None:
            continue
        if not isinstance(said, dict):
            raise refuse_field(key, "a mapping", said, "rope_scaling")
        _check_rope(key, said)
        for kind, one in said.items():
            if isinstance(one, dict):
                _check_rope(f"{key}.{kind}", one)


def check_declared(
    taken: type, names: Mapping[str, str], config: Mapping[str, Any], *, settled: bool
) -> None:
    """Refuse fields of another kind than mlx_lm's arguments are, and counts that nobody has.

    Args:
        taken: The class of the arguments.
        names: Its names, by the usual words of configs.
        config: The fields.
        settled: Whether they are as the layers will get them, and not as a file says them.

    Raises:
        ConfigError: ``config_field``.
    """
    declared = typing.get_type_hints(taken)
    for key in names.keys() & config.keys() - _SAID_OTHERWISE:
        value = config[key]
        kinds = _kinds(declared.get(names[key], Any))
        is_list = isinstance(value, list)
        if value is None or _is_spelled(value, kinds, settled=settled):
            continue
        if kinds and not is_list and not any(_is(value, kind) for kind in kinds):
            wanted = " or ".join(sorted({_WORDS.get(one, "a number") for one in kinds}))
            raise refuse_field(key, "a word" if str in kinds else wanted, value)
        _check_sizes(key, value, least=0 if int in kinds and not key.endswith(_SIGNED) else None)


@contextlib.contextmanager
def understandable(model_type: str, config: Mapping[str, Any]) -> Iterator[None]:
    """Turn what reading or building a config stumbles over into its refusal.

    Raises:
        ConfigError: ``config_field``, with the fields that are 0, which often are it.
    """
    try:
        yield
    except _FAULTS as error:
        zeros = [key for key, one in sorted(config.items()) if type(one) is int and one == 0]
        others = f" (0 stands in {', '.join(zeros)})" if zeros else ""
        text = " ".join(str(error).split())[:120]
        raise ConfigError(
            f"mlx engine: config of {model_type}: expected numbers that layers can be made of, got "
            f" {type(error).__name__}: {text}{others}; fetch it again, or {ADVICE}",
            reason="config_field",
        ) from error


@contextlib.contextmanager
def laid_out(names: list[str]) -> Iterator[None]:
    """Turn what laying out tensors stumbles over into the refusal of their shapes.

    Raises:
        CheckpointError: ``tensor_shape``, with the part of the model that they are of.
    """
    try:
        yield
    except _FAULTS as error:
        stem = names[0].rpartition(".")[0] if names else "no tensor"
        text = " ".join(str(error).split())[:120]
        raise CheckpointError(
            f"mlx engine: {stem} and beside: expected shapes that the config's numbers divide, got "
            f"{type(error).__name__}: {text}; fetch the checkpoint again, or {ADVICE}",
            reason="tensor_shape",
        ) from error


def _kinds(declared: Any) -> tuple[type, ...]:
    """Return the plain types of an annotation; none where it says nothing that can be held."""
    found: list[type] = []
    members = [declared]
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        members = list(typing.get_args(declared))
    for one in members:
        plain = typing.get_origin(one) or one
        if plain not in (bool, dict, float, int, list, str, type(None)):
            return ()
        found.append(plain)
    return tuple(found)


def _is(value: object, kind: type) -> bool:
    """Return whether a value is of a kind; files say 1 for true, and 2.0 for 2."""
    is_number = kind in (bool, int, float) and type(value) in (bool, int, float)
    return is_number or type(value) is kind


def _is_spelled(value: object, kinds: tuple[type, ...], *, settled: bool) -> bool:
    """Return whether a word may stand there: of a switch, or what becomes a number or a list."""
    is_open = bool in kinds or (not settled and (list in kinds or value == "auto"))
    return isinstance(value, str) and is_open


def _is_finite(value: float) -> bool:
    return -_FLOAT_MAX <= value <= _FLOAT_MAX


def _check_sizes(key: str, value: Any, least: int | None) -> None:
    """Refuse numbers that are below ``least``, too large for a size, or no numbers."""
    inside = {"": value}
    if isinstance(value, dict):
        inside = {f".{name}": one for name, one in value.items()}
    elif isinstance(value, list):
        inside = {f"[{at}]": one for at, one in enumerate(value)}
    for name, one in inside.items():
        if type(one) is int and least is not None and one < least:
            raise refuse_field(key + name, "no number below 0", one)
        if type(one) is int and one > _NUMBER_MAX:
            raise refuse_field(key + name, f"at most {_NUMBER_MAX}", one)
        if type(one) is float and not name and not _is_finite(one):
            raise refuse_field(key, "a finite number", one)


def _check_rope(where: str, said: Mapping[str, Any]) -> None:
    """Refuse numbers of a RoPE that are none, or that no position can be turned by."""
    for key, value in said.items():
        if value is None or isinstance(value, dict) or key in _ROPE_OTHERS:
            continue
        if key in _ROPE_WORDS:
            if not isinstance(value, str):
                raise refuse_field(f"{where}.{key}", "a word", value, "rope_scaling")
            continue
        is_number = type(value) in (int, float) and _is_finite(value)
        least = 0 if key in _ROPE_FACTORS else math.ulp(0.0)
        if key in _NUMBERS and not (is_number and value >= least):
            raise refuse_field(f"{where}.{key}", "a finite number above 0", value, "rope_scaling")
        if key == _SHARE and value > 1:
            raise refuse_field(f"{where}.{key}", "a share of a head", value, "rope_scaling")


_NUMBERS: Final = frozenset(
    (
        *_ROPE_FACTORS,
        *("alpha", "beta_fast", "beta_slow", "factor", "high_freq_factor", "low_freq_factor"),
        *("original_max_position_embeddings", _SHARE, "rope_theta"),
    )
)
