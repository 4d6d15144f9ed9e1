"""The torch engine with one fault in its last own layer, named by an environment variable.

It is what a verification must find. Each fault is made by the engine's own parts, put together as
somebody might have written them; nothing else of the engine is changed.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import TYPE_CHECKING, Any

import torch

from stagelink_torch import TorchEngine

if TYPE_CHECKING:
    from collections.abc import Callable

FAULT = "STAGELINK_TEST_FAULT"


class BrokenTorch(TorchEngine):
    """The fault is in the last own layer, where the least is left to make it grow."""

    def load(self, progress: Any = None) -> None:
        super().load(progress)
        assert self._loaded is not None
        with torch.no_grad():
            FAULTS[os.environ[FAULT]](self._loaded.model)


def _last(model: Any) -> Any:
    return model._layers[-1]


def _downs(layer: Any) -> list[torch.Tensor]:
    """The feed-forward block's last matrices: one, or one of each expert."""
    if hasattr(layer, "_mlp"):
        return [layer._mlp._down.weight]
    block = layer._feed_forward
    if hasattr(block, "_mlp"):
        return [block._mlp._down.weight]
    return [one.weight for one in block._experts._down]


def _scale(model: Any) -> None:
    """A quantization scale that is off by 1 %."""
    for weight in _downs(_last(model)):
        weight.mul_(1.01)


def _dropped_norm(model: Any) -> None:
    """The rows reach the feed-forward block as they are."""
    layer = _last(model)
    norms = list(layer._norms)
    norms[2 if len(norms) > 2 else 1] = torch.clone
    layer._norms = norms


def _forgotten_one(model: Any) -> None:
    """A norm whose factor is 1 + w multiplies by w."""
    norm = _last(model)._norms[0]
    norm._weight = norm._weight - 1.0


def _late_position(model: Any) -> None:
    """Every round but a stream's first begins one position too late."""
    attention = _last(model)._attention
    real, late = attention._rope, copy.copy(attention._rope)
    late._key = (*real._key, "late")
    late._cosine, late._sine = real._cosine.roll(-1, 0), real._sine.roll(-1, 0)

    class Rope:
        def turn(self, heads: torch.Tensor, batch: Any) -> torch.Tensor:
            is_late = any(piece.first > 0 for piece in batch.pieces)
            turned: torch.Tensor = (late if is_late else real).turn(heads, batch)
            return turned

    attention._rope = Rope()


def _all_late(model: Any) -> None:
    """Every position is one too late: attention sees distances only, so this is no fault."""
    rope = copy.copy(_last(model)._attention._rope)
    rope._key = (*rope._key, "late")
    rope._cosine, rope._sine = rope._cosine.roll(-1, 0), rope._sine.roll(-1, 0)
    _last(model)._attention._rope = rope


def _attention_scale(model: Any) -> None:
    """The factor on the products of queries and keys is off by 1 %."""
    attend = _last(model)._attention._attend
    attend._shape = dataclasses.replace(attend._shape, scale=1.01 * attend._shape.scale)


def _swapped_heads(model: Any) -> None:
    """The first and the last query head change places."""
    shape, weight = _last(model)._attention._shape, _last(model)._attention._qkv.weight
    _swap(weight[: shape.heads * shape.head_width].view(shape.heads, shape.head_width, -1))


def _kv_head(model: Any) -> None:
    """Every group of query heads reads the key and value head of the next group."""
    shape, weight = _last(model)._attention._shape, _last(model)._attention._qkv.weight
    heads = weight.view(-1, shape.head_width, weight.shape[1])
    for first in (shape.heads, shape.heads + shape.kv_heads):
        own = heads[first : first + shape.kv_heads]
        own[...] = own.roll(1, 0)


def _window(model: Any) -> None:
    """A sliding window reaches one position too far, in all own layers that have one."""
    found = [layer._attention._attend for layer in model._layers]
    found = [attend for attend in found if attend._shape.window]
    _there(found)
    for attend in found:
        attend._shape = dataclasses.replace(attend._shape, window=attend._shape.window + 1)


def _wrong_expert(model: Any) -> None:
    """Two experts' last matrices change places."""
    downs = _downs(_last(model))
    _there(len(downs) > 1)
    kept = downs[0].clone()
    downs[0][...] = downs[1]
    downs[1][...] = kept


def _no_head_norms(model: Any) -> None:
    """Query and key heads are not normed."""
    _there(_last(model)._attention._norms)
    _last(model)._attention._norms = None


def _epsilon(model: Any) -> None:
    """A norm's epsilon is ten times too large."""
    _last(model)._norms[0]._epsilon *= 10


def _stale_row(model: Any) -> None:
    """After a cut back the first new row's keys and values are not written."""
    slots = model.slots[-1]
    put, cut = slots.put, slots.cut
    cuts: dict[int, int] = {}

    def cut_and_note(slot: int, held: int, position: int) -> None:
        cut(slot, held, position)
        cuts[slot] = position

    def put_but_one(keys: Any, values: Any, batch: Any) -> None:
        old = []
        for piece in batch.pieces:
            if cuts.pop(piece.slot, None) == piece.first:
                at = piece.slot, slice(None), piece.first + slots.reserved
                old += [(held, at, held[at].clone()) for held in (slots.keys, slots.values)]
        put(keys, values, batch)
        for held, at, rows in old:
            held[at] = rows

    slots.cut, slots.put = cut_and_note, put_but_one


def _rounded(model: Any) -> None:
    """The feed-forward block's last matrix went through bfloat16."""
    for weight in _downs(_last(model)):
        weight[...] = weight.to(torch.bfloat16).to(weight.dtype)


def _final_norm(model: Any) -> None:
    """On the lead: the norm before the head is off by 1 %."""
    model.ends._norm._weight = model.ends._norm._weight * 1.01


def _there(part: object) -> None:
    """A fault that the family has no place for must not look like one that was not caught."""
    if not part:
        raise LookupError("the family has no such part")


def _swap(heads: torch.Tensor) -> None:
    kept = heads[0].clone()
    heads[0] = heads[-1]
    heads[-1] = kept


FAULTS: dict[str, Callable[[Any], None]] = {
    "scale": _scale,
    "dropped_norm": _dropped_norm,
    "forgotten_one": _forgotten_one,
    "late_position": _late_position,
    "all_late": _all_late,
    "attention_scale": _attention_scale,
    "swapped_heads": _swapped_heads,
    "kv_head": _kv_head,
    "window": _window,
    "wrong_expert": _wrong_expert,
    "no_head_norms": _no_head_norms,
    "epsilon": _epsilon,
    "stale_row": _stale_row,
    "rounded": _rounded,
    "final_norm": _final_norm,
}
