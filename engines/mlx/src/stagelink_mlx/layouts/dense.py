"""Lays out tensors of dense families whose mlx_lm modules have them otherwise than the files.

It reads nothing and casts nothing; see ``layouts/usual.py``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink_mlx.layouts.usual import Arrays, Layout

__all__ = ["DENSE_LAYOUTS"]

_HEAD = "lm_head.weight"
_LENGTH_EPSILON = 1e-7


def _turned(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """GPT-2: matrices are ``[inputs, outputs]`` in its own files, and turned in MLX's."""
    width, found = config["hidden_size"], dict(arrays)
    for name, array in arrays.items():
        stem = name.removesuffix("attn.c_attn.weight")
        if stem != name and f"{stem}attn.c_attn.scales" not in arrays and array.shape[0] == width:
            for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
                found[f"{stem}{part}.weight"] = arrays[f"{stem}{part}.weight"].swapaxes(0, 1)
    return found


def _three_in_turn(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """GPT-BigCode with keys for every head: files have a head's query, key and value together."""
    found, heads = dict(arrays), config["num_attention_heads"]
    for name, array in arrays.items():
        if ".attn.c_attn." in name and not config["multi_query"]:
            parts = mx.unflatten(array, 0, (heads, 3, -1))
            found[name] = parts.swapaxes(0, 1).flatten(0, 2)
    return found


def _normed_head(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Baichuan-M1: rows of the head have the length 1, once they are packed or divided."""
    del config
    found = dict(arrays)
    if _HEAD in found and "lm_head.scales" not in found:
        head = found[_HEAD].astype(mx.float32)
        found[_HEAD] = head / (mx.linalg.norm(head, axis=-1, keepdims=True) + _LENGTH_EPSILON)
    return found


def _gained_head(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Talkie: the head is a tensor without a module, and a factor."""
    del config
    found = dict(arrays)
    if "lm_head" in found:
        found[_HEAD] = found.pop("lm_head") * found.pop("lm_head_gain.w_g")
    return found


def _scalars(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Apertus: the constants of xIELU come as rows of one value."""
    del config
    return {
        name: array.squeeze() if ".act_fn." in name else array for name, array in arrays.items()
    }


DENSE_LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        "gained_head": _gained_head,
        "normed_head": _normed_head,
        "scalars": _scalars,
        "three_in_turn": _three_in_turn,
        "turned": _turned,
    }
)
