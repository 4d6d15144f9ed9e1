"""The MLX engine with one fault in its last own layer, named by an environment variable.

It is what a verification must find; the faults are those of `broken_torch`, in mlx_lm's modules.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from stagelink_mlx import MlxEngine
from stagelink_mlx.cache import KeysValues
from stagelink_mlx.parts.sums import _blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable

FAULT = "STAGELINK_TEST_FAULT"


class BrokenMlx(MlxEngine):
    """The fault is in the last own layer, where the least is left to make it grow."""

    def load(self, progress: Any = None) -> None:
        super().load(progress)
        assert self._layers is not None
        with mx.stream(self._backend.device):
            FAULTS[os.environ[FAULT]](self._layers)
            mx.eval([layer.parameters() for layer in self._layers._layers])


def _last(layers: Any) -> Any:
    return layers._layers[-1]


def _down(layer: Any) -> Any:
    """The feed-forward block's last module: of the block, or of all experts."""
    block = layer.get("mlp")
    return (block.get("switch_mlp") or block).down_proj


def _scale(layers: Any) -> None:
    """A quantization scale that is off by 1 %."""
    down = _down(_last(layers))
    _put(down, _weight(down) * 1.01)


def _dropped_norm(layers: Any) -> None:
    """The rows reach the feed-forward block as they are."""
    layer = _last(layers)
    is_four = "pre_feedforward_layernorm" in layer
    name = "pre_feedforward_layernorm" if is_four else "post_attention_layernorm"
    setattr(layer, name, lambda rows: rows)


def _forgotten_one(layers: Any) -> None:
    """A norm whose factor is 1 + w multiplies by w."""
    norm = _last(layers).input_layernorm
    norm.weight = norm.weight - 1.0


def _late_position(layers: Any) -> None:
    """Every round but a stream's first begins one position too late."""
    attention = _last(layers).self_attn
    rope = attention.rope
    attention.pop("rope")
    object.__setattr__(attention, "rope", lambda x, offset=0: rope(x, offset=offset + (offset > 0)))


def _attention_scale(layers: Any) -> None:
    """The factor on the products of queries and keys is off by 1 %."""
    _last(layers).self_attn.scale *= 1.01


def _swapped_heads(layers: Any) -> None:
    """The first and the last query head change places."""
    attention = _last(layers).self_attn
    heads = _heads(attention.q_proj, attention.n_heads)
    order = mx.array([attention.n_heads - 1, *range(1, attention.n_heads - 1), 0])
    _put(attention.q_proj, heads[order].flatten(0, 1))


def _kv_head(layers: Any) -> None:
    """Every group of query heads reads the key and value head of the next group."""
    attention = _last(layers).self_attn
    for linear in (attention.k_proj, attention.v_proj):
        heads = mx.roll(_heads(linear, attention.n_kv_heads), 1, 0)
        _put(linear, heads.flatten(0, 1))


def _window(layers: Any) -> None:
    """A sliding window reaches one position too far, in all own layers that have one."""
    _there("sliding" in layers._kinds)
    layers._window += 1
    layers._masks._window += 1


def _wrong_expert(layers: Any) -> None:
    """Two experts' last matrices change places."""
    down = _down(_last(layers))
    weight = _weight(down)
    _there(weight.ndim == 3)
    _put(down, weight[mx.array([1, 0, *range(2, len(weight))])])


def _no_head_norms(layers: Any) -> None:
    """Query and key heads are not normed."""
    attention = _last(layers).self_attn
    _there("q_norm" in attention)
    for name in ("q_norm", "k_norm"):
        attention.pop(name)
        object.__setattr__(attention, name, lambda heads: heads)


class _StaleRow(KeysValues):
    """Does not write the first row after a cut back."""

    _cut_at = -1

    def cut(self, position: int, replay: Callable[[mx.array], object] | None = None) -> None:
        self._cut_at = position if position < self.offset else -1
        super().cut(position, replay)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        at, self._cut_at = self._cut_at, -1
        if at == self.offset and self._held is not None:
            held = [one[..., at : at + 1, :] for one in self._held]
            keys = mx.concatenate([held[0], keys[..., 1:, :]], axis=2)
            values = mx.concatenate([held[1], values[..., 1:, :]], axis=2)
        return super().update_and_fetch(keys, values)


def _stale_row(layers: Any) -> None:
    """After a cut back the first new row's keys and values are not written."""
    made = layers.new_caches

    def new_caches(context: int) -> list[Any]:
        return [*made(context)[:-1], _StaleRow(context)]

    layers.new_caches = new_caches


def _rounded(layers: Any) -> None:
    """The feed-forward block's last matrix went through bfloat16."""
    down = _down(_last(layers))
    weight = _weight(down)
    _put(down, weight.astype(mx.bfloat16).astype(weight.dtype))


def _there(part: object) -> None:
    """A fault that the family has no place for must not look like one that was not caught."""
    if not part:
        raise LookupError("the family has no such part")


def _heads(linear: Any, count: int) -> mx.array:
    weight = _weight(linear)
    return weight.reshape(count, -1, weight.shape[-1])


def _weight(linear: Any) -> mx.array:
    """A matrix ``[..., outputs, inputs]``, also of a module that holds it in blocks."""
    if "weight" in linear:
        weight: mx.array = linear.weight
        return weight
    return mx.moveaxis(linear.blocks, -1, -3).flatten(-2, -1)


def _put(linear: Any, weight: mx.array) -> None:
    if "weight" in linear:
        linear.weight = weight
    else:
        linear.blocks = _blocks_of(weight)


FAULTS: dict[str, Callable[[Any], None]] = {
    "scale": _scale,
    "dropped_norm": _dropped_norm,
    "forgotten_one": _forgotten_one,
    "late_position": _late_position,
    "attention_scale": _attention_scale,
    "swapped_heads": _swapped_heads,
    "kv_head": _kv_head,
    "window": _window,
    "wrong_expert": _wrong_expert,
    "no_head_norms": _no_head_norms,
    "stale_row": _stale_row,
    "rounded": _rounded,
}
