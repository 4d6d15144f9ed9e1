"""Configs of families that came last and that mlx_lm's whole models hold, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.held_whole import WholeVariant

__all__ = ["REFUSED", "VARIANTS"]

_GEAR: Final = WholeVariant(
    "gear",
    {
        "head_dim": 24,
        "layer_types": ["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"] * 2,
        "num_hidden_layers": 8,
        "sliding_window": 16,
        "conv_L_cache": 4,
        "query_pre_attn_scalar": 40.0,
        "rope_theta": 30000.0,
        "rope_local_base_freq": 5000.0,
        "final_logit_softcapping": 6.0,
    },
    is_stacked=True,
    tolerance=1e-4,
)


def _with(
    base: WholeVariant, fields: dict[str, Any], refused: str = "", **more: Any
) -> WholeVariant:
    """Return a variant with other fields; a refused one is refused by the last of them."""
    more = {"field": list(fields)[-1] if refused and fields else "", **more}
    return dataclasses.replace(base, fields={**base.fields, **fields}, refused=refused, **more)


def _gear() -> dict[str, WholeVariant]:
    few = {"num_hidden_layers": 2, "layer_types": ["conv_mixer", "full_attention"]}
    found = {
        "two_layers": _with(_GEAR, few),
        "as_it_is": _GEAR,
        "4_bits": _with(_GEAR, {}, bits=4, tolerance=2e-4),
        "unsaid": _with(_GEAR, {"query_pre_attn_scalar": None, "final_logit_softcapping": None}),
        "capped_scores": _with(_GEAR, {"attn_logit_softcapping": 2.0}),
        "biases": _with(_GEAR, {"attention_bias": True}),
        "untied": _with(_GEAR, {"tie_word_embeddings": False}),
        "silu": _with(_GEAR, {"hidden_activation": "silu"}),
        "scaled": _with(_GEAR, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        "no_convolution": _with(_GEAR, {"layer_types": ["sliding_attention"] * 8}),
    }
    for key, value in (
        ("hidden_activation", "relu"),
        ("rows_twisted", 3),
        ("rope_parameters", {"rope_theta": 1.0}),
    ):
        found[key] = _with(_GEAR, {}, "config_field", file={key: value}, field=key)
    return {f"gear-{name}": one for name, one in found.items()}


_ALL: Final = _gear()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
