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

# Positions that a stream with recurrent layers can go back at least, and rows that are replayed at
# most beyond those of its last two calls: a copy of every row's state would be large.
_BACK: Final = 16


@dataclasses.dataclass(frozen=True, slots=True)
class _Copy:
    """The state of the layers that cannot be cut, before the row at ``position``."""

    position: int
    layers: dict[int, dict[str, Any]]


class Stream:
    """The state of one open stream.

    Going back to a position that lies between two calls gives the bytes that were there; inside a
    call the kept rows are computed again, as a call of their own.

    Attributes:
        cache: The library's cache of the own layers.
        position: Positions held.
    """

    def __init__(self, model: LayerRange, slack: int) -> None:
        """Make an empty stream."""
        self._model = model
        self.cache: DynamicCache = model.make_cache(slack)
        self.position = 0
        self._uncut = [n for n, one in enumerate(self.cache.layers) if not can_be_cut(one)]
        self._copies: list[_Copy] = []
        self._calls: list[tuple[int, torch.Tensor]] = []
        if self._uncut:
            self._copies.append(self._copy())

    @classmethod
    def restored(cls, model: LayerRange, slack: int, cache: DynamicCache, position: int) -> Stream:
        """Make a stream of a saved state; it cannot go back beyond that."""
        stream = cls(model, slack)
        stream.cache, stream.position = cache, position
        if stream._uncut:
            stream._copies = [stream._copy()]
        return stream

    @property
    def oldest(self) -> int:
        """The earliest position that the stream can go back to."""
        windows = [one.oldest for one in self.cache.layers if isinstance(one, KeptWindow)]
        oldest = max(windows, default=0)
        if not self._uncut:
            return oldest
        starts = [one.position for one in self._copies if one.position >= oldest]
        return min(starts, default=self.position)

    def run(self, rows: torch.Tensor) -> torch.Tensor:
        """Run rows ``[rows, width]`` (or ids ``[rows]``, on the lead) and keep their state."""
        if self._uncut:
            self._remember(rows)
        return self._compute(rows)

    def cut(self, position: int) -> None:
        """Go back to ``position``, which is at least ``oldest``."""
        if position == self.position:
            return
        if not self._uncut:
            self._cut_layers(position)
            return
        start = max((one for one in self._copies if one.position <= position), key=_position)
        self._copies = [one for one in self._copies if one.position <= start.position]
        again, calls = self._calls, []
        for n, fields in start.layers.items():
            vars(self.cache.layers[n]).update(_cloned(fields))
        self._cut_layers(start.position)
        for first, rows in again:
            if first >= position:
                break
            kept = (first, rows[: position - first])
            calls.append(kept)
            if first >= start.position:
                self._compute(kept[1])
        self._calls = calls

    def _compute(self, rows: torch.Tensor) -> torch.Tensor:
        run: Callable[..., torch.Tensor] = (
            self._model.run if rows.is_floating_point() else self._model.embed_and_run
        )
        out = run(rows, self.position, self.cache)
        self.position += len(rows)
        return out

    def _cut_layers(self, position: int) -> None:
        for n, layer in enumerate(self.cache.layers):
            if n not in self._uncut:
                cut_layer(layer, position)
        self.position = position

    def _remember(self, rows: torch.Tensor) -> None:
        """Keep the rows of a call, and before some calls a copy of the state.

        A call of several rows may be a verify, so it gets a copy; single rows share one. The copy
        before the newest is the last one that is at least ``_BACK`` positions old.
        """
        newest = self._copies[-1].position
        if self.position > newest and (len(rows) > 1 or self.position - newest >= _BACK):
            old = [one for one in self._copies if one.position <= self.position - _BACK]
            self._copies = [*(old[-1:] or self._copies[:1]), self._copy()]
            begin = self._copies[0].position
            self._calls = [call for call in self._calls if call[0] >= begin]
        self._calls.append((self.position, rows))

    def _copy(self) -> _Copy:
        layers = {n: _cloned(vars(self.cache.layers[n])) for n in self._uncut}
        return _Copy(self.position, layers)


def _position(copy: _Copy) -> int:
    return copy.position


def _cloned(fields: dict[str, Any]) -> dict[str, Any]:
    """Copy a cache layer's fields, with tensors of their own."""
    return {name: _clone(value) for name, value in fields.items()}


def _clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _clone(one) for key, one in value.items()}
    return value
