"""Fields of a model whose rows run through its layers twice: in the usual words, or refused.

It knows no layer.
"""

from __future__ import annotations

from typing import Any

from stagelink_mlx.configs.longcat import TWICE
from stagelink_mlx.refusal import refuse_field

__all__ = ["settle_loops"]


def settle_loops(config: dict[str, Any], layers: int) -> None:
    """Say that every layer keeps two states, the second one's keys in a window."""
    window = config["loop_window_size"]
    if type(window) is not int or window < 1:
        raise refuse_field("loop_window_size", "a whole number above 0", window)
    for key in ("sliding_window", "layer_types"):
        if config.get(key) not in (None, ["full_attention"] * layers):
            raise refuse_field(key, "nothing", config[key])
    config |= {"layer_types": [TWICE] * layers, "sliding_window": window}
