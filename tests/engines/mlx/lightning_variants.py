"""Configs of the one family with a recurrence that mlx_lm alone defines, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.held_whole import WholeVariant

_BASE: Final = WholeVariant(
    "bailing_moe_linear",
    {
        "first_k_dense_replace": 1,
        "group_norm_size": 2,
        "layer_group_size": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 4,
        "num_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "rope_theta": 20000.0,
        "score_function": "sigmoid",
        "use_qk_norm": True,
    },
    names=((".mlp.gate.gate_proj.", ".mlp.gate."),),
    # Each of the two was up to 2.7e-5 off from the same model in float64, with the ids of 4 to 8.
    tolerance=5e-5,
)


def _with(fields: dict[str, Any], refused: str = "", field: str = "") -> WholeVariant:
    return dataclasses.replace(
        _BASE, fields={**_BASE.fields, **fields}, refused=refused, field=field
    )


VARIANTS: Final = {
    "as_it_is": _BASE,
    "left_over": _with({"layer_group_size": 4}),
    "all_attend": _with({"layer_group_size": 1}),
    "biases": _with({"use_bias": True, "use_qkv_bias": True}),
    "softmax": _with({"score_function": "softmax"}),
    "tied": _with({"tie_word_embeddings": True}),
    "quantized": dataclasses.replace(_BASE, bits=8),
}
REFUSED: Final = {
    "shared_keys": _with({"num_key_value_heads": 2}, "config_field", "num_key_value_heads"),
    "no_group": _with({"layer_group_size": 7}, "config_field", "layer_group_size"),
    "unknown": dataclasses.replace(
        _BASE, file={"rows_twisted": 3}, refused="config_field", field="rows_twisted"
    ),
}
