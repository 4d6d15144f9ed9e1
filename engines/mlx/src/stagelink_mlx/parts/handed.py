"""How a layer is run that hands the next one more than its rows: keys, values, or a whole state.

It builds no layer. What is handed stays inside a stage, unless the rows of a family are wider: then
it travels behind them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # Layer, rows ``[1, rows, width]``, mask, cache and what was handed; rows and what is handed on.
    Handing = Callable[[Any, mx.array, Any, Any, Any], tuple[mx.array, Any]]

__all__ = ["HANDING", "hold_state_in_floats"]


def _raw_keys(
    layer: Any, rows: mx.array, mask: Any, cache: Any, handed: Any
) -> tuple[mx.array, Any]:
    """Hunyuan: layers without matrices of keys take those of the rows, before they are turned."""
    own = "k_proj" in layer.self_attn
    found: tuple[mx.array, Any] = layer(rows, mask, cache, None if own else handed)
    return found


def _whole_state(
    layer: Any, rows: mx.array, mask: Any, cache: Any, handed: Any
) -> tuple[mx.array, Any]:
    """AFM: the last layers see the keys and values of the last layer that has its own."""
    if "qkv_proj" in layer.self_attn:
        return layer(rows, mask, cache), cache
    return layer(rows, *handed.keys_and_values(), mask), handed


def _first_values(
    layer: Any, rows: mx.array, mask: Any, cache: Any, handed: mx.array
) -> tuple[mx.array, mx.array]:
    """RWKV-7: the first layer's values go through all; what comes into that layer is no value."""
    del mask
    width = layer.attn.head_dim
    rows, values = layer(rows, mx.unflatten(handed, -1, (-1, width)), cache)
    return rows, values.flatten(-2)


def hold_state_in_floats(mixing: Any) -> None:
    """Let RWKV-7's recurrence be computed and kept in float32; mlx_lm's has the rows' digits."""
    made = mixing._wkv7  # noqa: SLF001 - it has no other name

    def run(read: mx.array, *given: Any) -> tuple[mx.array, mx.array]:
        *vectors, state = given
        out, state = made(*(one.astype(mx.float32) for one in (read, *vectors)), state)
        return out.astype(read.dtype), state

    mixing._wkv7 = run  # noqa: SLF001


HANDING: Final[Mapping[str, Handing]] = MappingProxyType(
    {
        "first_values": _first_values,
        "raw_keys": _raw_keys,
        "whole_state": _whole_state,
    }
)
