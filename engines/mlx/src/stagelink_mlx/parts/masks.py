"""Which positions a row may attend to, by the kind of a layer.

It runs no layer, and asks none: a mask depends on the rows and on nothing that a layer holds.
mlx_lm asks the cache of the first layer of a kind, which a stage may not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.engine import Family

__all__ = ["Masks"]


class Masks:
    """Makes the masks of one stage's layers."""

    def __init__(self, family: Family, kinds: Sequence[str], *, as_arrays: bool) -> None:
        """Take the numbers of a model.

        Args:
            family: As its config is understood.
            kinds: Of the own layers.
            as_arrays: Whether layers need an array even where ``"causal"`` would do.
        """
        self._kinds, self._as_arrays = tuple(kinds), as_arrays
        self._window: int | None = family.config.get("sliding_window")
        self._chunk = 0
        if "chunked" in kinds:
            self._chunk = family.config["attention_chunk_size"]

    def of(self, first: int, count: int) -> dict[str, Any]:
        """Return the mask of each kind of layer for ``count`` rows from position ``first`` on."""
        full: Any = None
        if count > 1:
            full = _mask(first, count, 0, None) if self._as_arrays else "causal"
        sliding = full
        if self._window is not None and count > 1 and first + count > self._window:
            sliding = _mask(first, count, max(0, first - self._window + 1), self._window)
        masks = dict.fromkeys(self._kinds, full) | {"sliding": sliding, "linear": None}
        if self._chunk and first + count > self._chunk:
            masks["chunked"] = _chunk_mask(first, count, self._chunk)
        return masks


def _mask(first: int, count: int, begin: int, window: int | None) -> mx.array:
    """Return ``[count, first + count - begin]``: which positions from ``begin`` on a row sees."""
    rows = mx.arange(first, first + count)[:, None]
    columns = mx.arange(begin, first + count)[None]
    seen = columns <= rows
    return seen if window is None else seen & (columns > rows - window)


def _chunk_mask(first: int, count: int, chunk: int) -> mx.array:
    """Return ``[count, first + count]``: a row sees what comes before it in its own chunk."""
    rows = mx.arange(first, first + count)[:, None]
    columns = mx.arange(0, first + count)[None]
    return (columns <= rows) & (columns // chunk == rows // chunk)
