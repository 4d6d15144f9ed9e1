"""One stream's state in a range: its cache, and what it takes to go back to an earlier position.

It checks no plan. States that cannot be cut (recurrent ones) go back by a copy and a replay.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import torch

from stagelink_transformers.kept import KeptWindow, can_be_cut, cut_layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers.cache_utils import DynamicCache

    from stagelink_transformers.model import LayerRange

# Positions that a stream with recurrent layers can go back at least: a copy of its state before
# every row would be large.
_BACK: Final = 16


@dataclasses.dataclass(frozen=True, slots=True)
class _Copy:
    """The state of the layers that cannot be cut, before the row at ``position``."""

    position: int
    layers: dict[int, dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """What the layers that cannot be cut were given in one call, from the row at ``first`` on."""

    first: int
    inputs: dict[int, torch.Tensor]

    def before(self, position: int) -> _Call:
        """Return the call without the rows from ``position`` on."""
        kept = position - self.first
        return _Call(self.first, {n: rows[:kept] for n, rows in self.inputs.items()})


class Stream:
    """The state of one open stream.

    Keys and values are cut. A layer that cannot be cut goes back to a copy and runs its own inputs
    again, call by call: a position between two calls gets the bytes that were there; inside a call
    the kept rows are a call of their own. Where the model is cut into stages does not matter.

    Attributes:
        cache: The library's cache of the own layers.
        position: Positions held.
    """

    def __init__(self, model: LayerRange, slack: int) -> None:
        """Make an empty stream."""
        self._model = model
        self._slack = slack
        self.cache: DynamicCache = model.make_cache(slack)
        self.position = 0
        self._calls: list[_Call] = []
        self._copies = [self._copy()]

    @classmethod
    def restored(cls, model: LayerRange, slack: int, cache: DynamicCache, position: int) -> Stream:
        """Make a stream of a saved state; it cannot go back beyond that."""
        stream = cls(model, slack)
        stream.cache, stream.position = cache, position
        stream._copies = [stream._copy()]
        return stream

    @property
    def oldest(self) -> int:
        """The earliest position, besides 0, that the stream can go back to."""
        windows = [one.oldest for one in self.cache.layers if isinstance(one, KeptWindow)]
        copies = [self._copies[0].position] if self._model.uncut else []
        return max([*windows, *copies], default=0)

    def run(self, rows: torch.Tensor) -> torch.Tensor:
        """Run rows ``[rows, width]`` (or ids ``[rows]``, on the lead) and keep their state.

        Where the library computes several rows behind others otherwise than one (calls.py), each
        of a few is a call of its own: a verify is what decoding would have been.
        """
        if self.position and 1 < len(rows) <= self._model.rows_alone:
            return torch.cat([self._call(one.clone()) for one in torch.split(rows, 1)])
        return self._call(rows)

    def _call(self, rows: torch.Tensor) -> torch.Tensor:
        """Run rows in one call."""
        run: Callable[..., torch.Tensor] = (
            self._model.run if rows.is_floating_point() else self._model.embed_and_run
        )
        if self._model.uncut:
            self._copy_before(len(rows))
        out = run(rows, self.position, self.cache)
        if self._model.uncut:
            self._calls.append(_Call(self.position, self._model.take_inputs()))
        self.position += len(rows)
        return out

    def cut(self, position: int) -> None:
        """Go back to ``position``, which is 0 or at least ``oldest``."""
        if position == self.position:
            return
        if position == 0:
            self._begin()
            return
        for layer in self.cache.layers:
            if can_be_cut(layer):
                cut_layer(layer, position)
        if self._model.uncut:
            self._go_back(position)
        self.position = position

    def _begin(self) -> None:
        """Hold nothing again."""
        self.cache = self._model.make_cache(self._slack)
        self.position = 0
        self._calls = []
        self._copies = [self._copy()]

    def _go_back(self, position: int) -> None:
        self._copies = [one for one in self._copies if one.position <= position]
        start = self._copies[-1]
        for n, fields in start.layers.items():
            vars(self.cache.layers[n]).update(_cloned(fields))
        self._calls = [one.before(position) for one in self._calls if one.first < position]
        for call in self._calls:
            if call.first >= start.position:
                self._model.replay(call.inputs, call.first, self.cache)

    def _copy_before(self, rows: int) -> None:
        """Copy the state before some calls.

        A call of several rows may be a verify, so it gets a copy; single rows share one. Beside the
        newest the last copy that is at least ``_BACK`` positions old is kept, and all calls after.
        """
        newest = self._copies[-1].position
        if self.position == newest or (rows == 1 and self.position - newest < _BACK):
            return
        old = [one for one in self._copies if one.position <= self.position - _BACK]
        self._copies = [*(old[-1:] or self._copies[:1]), self._copy()]
        begin = self._copies[0].position
        self._calls = [call for call in self._calls if call.first >= begin]

    def _copy(self) -> _Copy:
        layers = {n: _cloned(vars(self.cache.layers[n])) for n in self._model.uncut}
        return _Copy(self.position, layers)


def _cloned(fields: dict[str, Any]) -> dict[str, Any]:
    """Copy a cache layer's fields, with tensors of their own."""
    return {name: _clone(value) for name, value in fields.items()}


def _clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _clone(one) for key, one in value.items()}
    return value
