"""Fields of PLaMo 2: brought into the usual words, or refused by name.

It knows no layer.
"""

from __future__ import annotations

from typing import Any

from stagelink_mlx.refusal import refuse_field

__all__ = ["settle_plamo2"]


def settle_plamo2(config: dict[str, Any], layers: int) -> None:
    """Say of each layer whether it attends, and how far all positions are treated alike."""
    for key in ("rope_parameters", "rope_scaling", "rope_theta"):
        if config.get(key) not in (None, 10000, 10000.0):
            raise refuse_field(key, "none, as the family has one theta", config[key])
    step = config["mamba_step"] if config["mamba_enabled"] else 1
    if type(step) is not int or step < 1 or (config["mamba_enabled"] and step < 2):
        raise refuse_field("mamba_step", "a whole number above 1", step)
    attends = [n % step == step // 2 for n in range(layers)]
    if layers <= step // 2:
        # Then the last one does.
        attends = [n == layers - 1 for n in range(layers)]
    config["layer_types"] = ["full_attention" if one else "linear_attention" for one in attends]
    window, whole = config["attention_window_size"], config.get("full_attention_idx") or []
    if type(window) is not int or window < 1:
        raise refuse_field("attention_window_size", "a whole number above 0", window)
    if config.pop("sliding_window", window) != window:
        raise refuse_field("sliding_window", f"{window} as attention_window_size says", "another")
    if not isinstance(whole, list) or any(type(one) is not int for one in whole):
        raise refuse_field("full_attention_idx", "a list of layers", whole)
    if any(one and n not in whole for n, one in enumerate(attends)):
        # Behind it a window opens, whose borders mlx_lm leaves out.
        config["plain_positions"] = window
