"""What a stream keeps in each layer: keys and values, plain ones beside them, recurrent states.

It decides nothing about a plan (the seam does) and computes no attention; mlx_lm's layers call it
as they call mlx_lm's own caches.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "SPAN_ROWS",
    "Beside",
    "Both",
    "Indexed",
    "KeysValues",
    "LayerCache",
    "Reach",
    "Recurrent",
    "Stateless",
    "Twice",
    "new_cache",
    "recurrence_of",
]

# A recurrent state can be cut back by at least this many rows.
SPAN_ROWS = 64
# At most so many arrays are a recurrent layer's state.
_ARRAYS = 4
# Positions are held in steps, so that the memory grows seldom.
_STEP = 256


class KeysValues:
    """Keys and values of one stream in one layer, ``[1, heads, positions, width]`` each.

    A sliding layer keeps all positions too, and hands out those that its window reaches: a cut
    back to any position is then exact, and no row's bits depend on where a ring buffer turned.

    Attributes:
        offset: Positions held.
    """

    def __init__(self, context: int, window: int | None = None) -> None:
        """Begin empty; at most ``context`` positions come."""
        self.offset = 0
        self._window = window
        self._capacity = -(-context // _STEP) * _STEP
        self._held: tuple[mx.array, mx.array] | None = None
        self._begin = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows; return the positions that they may attend to."""
        first, end = self.offset, self.offset + keys.shape[2]
        held = self._grown(keys, values, end)
        for own, new in zip(held, (keys, values), strict=True):
            own[..., first:end, :] = new
        self._held, self.offset = held, end
        self._begin = 0 if self._window is None else max(0, first - self._window + 1)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Return what the last rows may attend to: for layers that read this one's keys."""
        keys, values = (one[..., self._begin : self.offset, :] for one in self._held or ())
        return keys, values

    def cut(self, position: int, replay: Callable[[mx.array], object] | None = None) -> None:
        """Forget what lies at ``position`` and after it; nothing needs to run again."""
        del replay
        self.offset = position

    def grows(self) -> tuple[bool, ...]:
        """Say of each array of ``saved`` whether its third dimension counts positions."""
        return (True, True)

    def arrays(self) -> tuple[mx.array, ...]:
        """Return what must be evaluated before a call returns."""
        return self._held or ()

    def saved(self) -> tuple[mx.array, ...]:
        """Return the state: keys and values of the positions held."""
        return tuple(one[..., : self.offset, :] for one in self.arrays())

    def restore(self, state: tuple[mx.array, ...], position: int) -> None:
        """Take what ``saved`` gave."""
        del position
        self.update_and_fetch(*state)

    def _grown(self, keys: mx.array, values: mx.array, end: int) -> tuple[mx.array, mx.array]:
        """Return the arrays with room for ``end`` positions: twice as much, up to the context."""
        if self._held is not None and end <= self._held[0].shape[2]:
            return self._held
        size = -(-end // _STEP) * _STEP
        if self._held is not None:
            size = min(self._capacity, max(size, 2 * self._held[0].shape[2]))
        grown = []
        for at, new in enumerate((keys, values)):
            room = mx.zeros((*new.shape[:2], size, new.shape[3]), new.dtype)
            if self._held is not None:
                room[..., : self.offset, :] = self._held[at][..., : self.offset, :]
            grown.append(room)
        return grown[0], grown[1]


@dataclasses.dataclass(frozen=True, slots=True)
class _Point:
    """The state before the row at ``position``; MLX arrays never change, so it costs no copy."""

    position: int
    arrays: tuple[mx.array | None, ...]


class Recurrent:
    """Convolution and recurrent state of one stream in one linear-attention layer.

    A state after a row cannot be turned back, and keeping one a row costs megabytes each. What is
    kept instead is the state at three earlier points (an old one, one at least ``SPAN_ROWS`` rows
    later, and the beginning of the last piece), and the layer's input rows since the oldest. A cut
    takes the last point before it and lets the kept rows run again, piece by piece as they came.

    Attributes:
        lengths: Always ``None``: a piece is one stream's rows, without padding.
        offset: Where the piece begins that came last.
    """

    def __init__(self) -> None:
        """Begin at position 0."""
        self.lengths = None
        self.offset = 0
        self._now: list[mx.array | None] = [None] * _ARRAYS
        self._position = 0
        self._points = [_Point(0, (None,) * _ARRAYS)] * 3
        self._pieces: list[tuple[int, mx.array]] = []

    def __getitem__(self, at: int) -> mx.array | None:
        return self._now[at]

    def __setitem__(self, at: int, array: mx.array) -> None:
        self._now[at] = array

    def advance(self, rows: int) -> None:
        """Do nothing: ``begin`` has counted the rows, which not every family's layers do."""

    def begin(self, rows: mx.array) -> None:
        """Note the layer's input ``[1, rows, width]`` before the layer takes it."""
        old, middle, _ = self._points
        last = _Point(self._position, tuple(self._now))
        if last.position - middle.position >= SPAN_ROWS:
            old, middle = middle, last
            self._pieces = [one for one in self._pieces if one[0] >= old.position]
        self._points = [old, middle, last]
        self._pieces.append((self._position, rows))
        self.offset = self._position
        self._position += rows.shape[1]

    def cut(self, position: int, replay: Callable[[mx.array], object]) -> None:
        """Go back to ``position``, which is 0 or one that ``Reach`` allows.

        ``replay`` runs the layer's recurrence over input rows, with this cache.
        """
        if position == self._position:
            return
        if position == 0:
            self.__init__()  # type: ignore[misc]
            return
        reached = [one for one in self._points if one.position <= position]
        pieces = [one for one in self._pieces if one[0] < position]
        point = reached[-1]
        self._now, self._position = list(point.arrays), point.position
        self._points = (reached + [point] * 3)[:3]
        self._pieces = [one for one in pieces if one[0] < point.position]
        for first, rows in pieces:
            if first >= point.position:
                kept = rows[:, : position - first]
                self.begin(kept)
                replay(kept)

    def grows(self) -> tuple[bool, ...]:
        """Say of each array of ``saved`` whether its third dimension counts positions."""
        return (False,) * len(self.arrays())

    def arrays(self) -> tuple[mx.array, ...]:
        """Return what must be evaluated before a call returns."""
        return tuple(one for one in self._now if one is not None)

    def saved(self) -> tuple[mx.array, ...]:
        """Return the state: convolution and recurrence, nothing at position 0."""
        return self.arrays()

    def restore(self, state: tuple[mx.array, ...], position: int) -> None:
        """Take what ``saved`` gave; a cut then reaches back to ``position`` and no further."""
        # Some layers have fewer arrays: a convolution only.
        self._now = [*state, *[None] * _ARRAYS][:_ARRAYS]
        self._position = position
        self._points = [_Point(position, tuple(self._now))] * 3


class _Pair:
    """Two states of one layer that are cut, saved and restored together.

    The second one is keys and values.
    """

    def __init__(self, first: Recurrent | KeysValues, second: KeysValues) -> None:
        self._first, self._second = first, second

    def cut(self, position: int, replay: Callable[[mx.array], object]) -> None:
        """Cut both back to ``position``; see ``Recurrent.cut``."""
        self._first.cut(position, replay)
        self._second.cut(position)

    def grows(self) -> tuple[bool, ...]:
        """Say of each array of ``saved`` whether its third dimension counts positions."""
        return self._first.grows() + self._second.grows()

    def arrays(self) -> tuple[mx.array, ...]:
        """Return what must be evaluated before a call returns."""
        return self._first.arrays() + self._second.arrays()

    def saved(self) -> tuple[mx.array, ...]:
        """Return the state: the first one's, then the second one's keys and values."""
        return self._first.saved() + self._second.saved()

    def restore(self, state: tuple[mx.array, ...], position: int) -> None:
        """Take what ``saved`` gave."""
        self._first.restore(state[:-2], position)
        self._second.restore(state[-2:], position)


class Both(_Pair):
    """What a layer keeps that attends and has a recurrence: one state of each kind."""

    def __init__(self, context: int) -> None:
        """Begin empty; at most ``context`` positions come."""
        self.recurrent = Recurrent()
        super().__init__(self.recurrent, KeysValues(context))

    def __getitem__(self, at: int) -> Recurrent | KeysValues:
        return (self._first, self._second)[at]


class Beside(_Pair):
    """Keys and values, and what they were before the row before was mixed into each.

    All positions of both are held, so that a cut to any of them is exact.
    """

    def __init__(self, context: int, window: int | None) -> None:
        """Begin empty; at most ``context`` positions come."""
        # A piece of the plain ones comes with the row before it.
        self.mixed, self.plain = KeysValues(context, window), KeysValues(context, 2)
        super().__init__(self.mixed, self.plain)

    @property
    def offset(self) -> int:
        """Positions held."""
        return self.mixed.offset


class Indexed(_Pair):
    """Keys and values, and the keys of an indexer that chooses which of them a row sees."""

    def __init__(self, context: int) -> None:
        """Begin empty; at most ``context`` positions come."""
        self.plain, self._index = KeysValues(context), KeysValues(context)
        super().__init__(self.plain, self._index)

    @property
    def offset(self) -> int:
        """Positions held."""
        return self.plain.offset

    def index(self, keys: mx.array) -> mx.array:
        """Append the indexer's keys ``[1, heads, rows, even width]``; return all of them."""
        halves = self._index.update_and_fetch(*mx.split(keys, 2, axis=-1))
        return mx.concatenate(list(halves), axis=-1)


class Twice(_Pair):
    """What a layer keeps that attends twice: keys and values of each, the second in a window."""

    def __init__(self, context: int, window: int | None = None) -> None:
        """Begin empty; at most ``context`` positions come."""
        super().__init__(KeysValues(context), KeysValues(context, window))

    def __getitem__(self, at: int) -> Recurrent | KeysValues:
        return (self._first, self._second)[at]


class Stateless:
    """What a layer keeps that mixes no positions: nothing."""

    def cut(self, position: int, replay: Callable[[mx.array], object] | None = None) -> None:
        """Do nothing."""

    def grows(self) -> tuple[bool, ...]:
        """Return nothing: there are no arrays."""
        return ()

    def arrays(self) -> tuple[mx.array, ...]:
        """Return nothing."""
        return ()

    def saved(self) -> tuple[mx.array, ...]:
        """Return nothing."""
        return ()

    def restore(self, state: tuple[mx.array, ...], position: int) -> None:
        """Do nothing."""


class Reach:
    """How far a stream of a model with recurrent layers can be cut back.

    It follows the stream's pieces as ``Recurrent`` does, and so says the same on every stage, also
    on one that has none of those layers: a plan is refused by all stages or by none.
    """

    def __init__(self) -> None:
        """Begin at position 0."""
        self._old = self._middle = 0

    @property
    def earliest(self) -> int:
        """The first position that a cut can go back to, beside 0."""
        return self._old

    def begin(self, position: int) -> None:
        """Note where a piece begins."""
        if position - self._middle >= SPAN_ROWS:
            self._old, self._middle = self._middle, position

    def cut(self, position: int) -> None:
        """Note a cut to an allowed position."""
        if position == 0:
            self._old = self._middle = 0
        elif position < self._middle:
            self._middle = self._old

    def restore(self, position: int) -> None:
        """Note that a saved state was taken at ``position``."""
        self._old = self._middle = position


LayerCache: TypeAlias = KeysValues | Recurrent | Both | Beside | Indexed | Stateless | Twice


def new_cache(kind: str, context: int, window: int | None) -> LayerCache:
    """Return the empty state of a layer of a kind."""
    if kind == "twice":
        return Twice(context, window)
    if kind == "none":
        return Stateless()
    if kind == "linear":
        return Recurrent()
    if kind == "indexed":
        return Indexed(context)
    return Both(context) if kind == "both" else KeysValues(context, window)


def recurrence_of(cache: LayerCache) -> Recurrent | None:
    """Return the recurrent state that a layer keeps, alone or beside keys and values."""
    if isinstance(cache, Both):
        return cache.recurrent
    return cache if isinstance(cache, Recurrent) else None
