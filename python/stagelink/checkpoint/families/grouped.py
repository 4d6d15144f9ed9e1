"""Families whose attention is grouped-query: their heads, and what a layer's keys and values weigh.

It reads no config; `config_reading.take_heads` does.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.families.base import FULL, SLIDING, Family, LayerState

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedFamily(Family):
    """A decoder with grouped-query attention in all layers, or in some.

    Attributes:
        heads: Query heads.
        kv_heads: Key and value heads; ``heads`` is a multiple.
        head_width: Values of one head; even.
        window: Positions that a row of a sliding layer sees, itself included; ``None`` where no
            layer slides.
    """

    heads: int
    kv_heads: int
    head_width: int
    window: int | None = None

    @property
    def query_values(self) -> int:
        """Values of q over all heads."""
        return self.heads * self.head_width

    @property
    def key_values(self) -> int:
        """Values of k, and of v, over all heads."""
        return self.kv_heads * self.head_width

    def layer_state(self, n: int, value_bytes: int = 2) -> LayerState:
        """Return keys and values of every position, or of the window's in a sliding layer."""
        kind = self.layer_kinds[n]
        window = self.window if kind == SLIDING else None
        return LayerState(
            SLIDING if window is not None else FULL,
            2 * self.key_values * value_bytes,
            window=window,
        )


def grouped_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``GroupedFamily`` that an understood config answers."""
    return {
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "head_width": config["head_dim"],
        "window": config.get("sliding_window"),
    }
