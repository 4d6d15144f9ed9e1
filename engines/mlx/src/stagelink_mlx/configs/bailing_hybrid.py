"""Fields of Ling and Ring 2.5: brought into the usual words, or refused by name.

It knows no layer. Files of Ling 3 have the same type; ``families/named.py`` tells them apart.
"""

from __future__ import annotations

from typing import Any

from stagelink_mlx.configs.hybrid import settle_lightning
from stagelink_mlx.refusal import refuse_field

__all__ = ["settle_bailing_hybrid"]


def settle_bailing_hybrid(config: dict[str, Any], layers: int) -> None:
    """Say which layers attend; take the widths of heads that follow from others."""
    settle_lightning(config, layers)
    width, share = config.get("head_dim"), config.get("partial_rotary_factor", 0.5)
    if type(width) is not int or type(share) not in (int, float):
        raise refuse_field("head_dim", "a whole number", width)
    plain: Any = config.get("qk_nope_head_dim")
    turned: Any = config.get("qk_rope_head_dim")
    if type(plain) is not int or type(turned) is not int:
        raise refuse_field("qk_rope_head_dim", "a whole number", turned)
    for key, wanted in (("rotary_dim", int(width * share)), ("qk_head_dim", plain + turned)):
        said = config.pop(key, None)
        if said not in (None, wanted):
            raise refuse_field(key, str(wanted), said)
    if int(width * share) not in range(2, width + 1, 2):
        raise refuse_field("partial_rotary_factor", f"an even part of {width}", share)
    groups, heads = config.get("group_norm_size"), config["num_attention_heads"]
    if type(groups) is not int or groups < 1 or heads * width % groups:
        raise refuse_field("group_norm_size", f"a divisor of {heads * width}", groups)
    if config["score_function"] not in ("sigmoid", "softmax"):
        raise refuse_field("score_function", "sigmoid or softmax", config["score_function"])
