"""Cache layers that can be cut back: a sliding window that keeps some positions more.

It decides nothing about streams; streams.py cuts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache


class KeptWindow(DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]
    """The library's sliding layer, keeping ``slack`` positions beyond the window.

    What attention reads is the same; it is copied to fresh memory, so that bits do not depend on
    how much more is kept.
    """

    # The library says that they may be missing, and makes them before they are read.
    keys: Any
    values: Any

    def __init__(self, sliding_window: int, slack: int) -> None:
        """Make an empty layer."""
        super().__init__(sliding_window=sliding_window)
        self.slack = slack

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values ``[1, heads, rows, width]``; return what the rows may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = key_states.shape[-2]
        self.cumulative_length += rows
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        most = self.sliding_window - 1 + self.slack
        self.keys, self.values = keys[:, :, -most:], values[:, :, -most:]
        seen = self.sliding_window - 1 + rows
        if keys.shape[-2] <= seen:
            return keys, values
        return keys[:, :, -seen:].contiguous(), values[:, :, -seen:].contiguous()

    @property
    def oldest(self) -> int:
        """The earliest position that the layer can be cut back to."""
        begin = self.cumulative_length - self._kept()
        return int(begin + self.sliding_window - 1) if begin else 0

    def cut(self, position: int) -> None:
        """Drop every position from ``position`` on."""
        begin = self.cumulative_length - self._kept()
        if self.is_initialized:
            self.keys = self.keys[:, :, : position - begin]
            self.values = self.values[:, :, : position - begin]
        self.cumulative_length = position

    def needed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values that later rows can see."""
        seen = min(self.cumulative_length, self.sliding_window - 1)
        begin = self._kept() - seen
        return self.keys[:, :, begin:], self.values[:, :, begin:]

    def _kept(self) -> int:
        return int(self.keys.shape[-2]) if self.is_initialized else 0


def replace_windows(cache: DynamicCache, slack: int) -> None:
    """Put layers that can be cut back in the place of an empty cache's sliding layers."""
    cache.layers = [
        KeptWindow(layer.sliding_window, slack)
        if type(layer) is DynamicSlidingWindowLayer
        else layer
        for layer in cache.layers
    ]


def can_be_cut(layer: object) -> bool:
    """Say whether a layer's state of an earlier position is part of its state, or it has none."""
    return type(layer) in (DynamicLayer, DummyLayer) or isinstance(layer, KeptWindow)


def cut_layer(layer: Any, position: int) -> None:
    """Drop every position from ``position`` on of a layer that ``can_be_cut``."""
    if isinstance(layer, KeptWindow):
        layer.cut(position)
    elif type(layer) is not DummyLayer and layer.is_initialized:
        layer.keys = layer.keys[:, :, :position]
        layer.values = layer.values[:, :, :position]
