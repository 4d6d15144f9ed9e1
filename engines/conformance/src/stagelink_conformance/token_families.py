"""Tiny models whose layers read token ids beside the rows, and one another's keys, as data.

They are not among the usual families: few engines take them, and not every cut is one.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["TOKEN_FAMILIES"]

_WINDOW: Final = 16
_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_LOCAL: Final = {"rope_type": "default", "rope_theta": 10000.0}
# Layers 5 to 7 read the keys of the last layer of their kind before them: cuts before 1, 2 and 3.
_SHARED: Final[dict[str, Any]] = {
    "head_dim": 16,
    "hidden_size_per_layer_input": 32,
    "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
    "num_kv_shared_layers": 3,
    "sliding_window": _WINDOW,
}

# The config class and the fields, as ``families.FAMILIES`` has them.
TOKEN_FAMILIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "gemma3n_text": (
        "gemma3n_text",
        {
            **_SHARED,
            # Fewer than there are tokens: the rest read the first row.
            "vocab_size_per_layer_input": 200,
            "laurel_rank": 8,
            "altup_num_inputs": 4,
            "activation_sparsity_pattern": [0.9, 0.8, 0.5, *[0.0] * 5],
            "final_logit_softcapping": 6.0,
            "rope_parameters": {
                _FULL: {"rope_type": "linear", "rope_theta": 30000.0, "factor": 2.0},
                _SLIDING: _LOCAL,
            },
        },
    ),
    "gemma4_small": (
        "gemma4_text",
        {
            **_SHARED,
            "vocab_size_per_layer_input": 256,
            "global_head_dim": 24,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 4.0,
            "rope_parameters": {
                _FULL: {
                    "rope_type": "proportional",
                    "rope_theta": 30000.0,
                    "partial_rotary_factor": 0.25,
                },
                _SLIDING: _LOCAL,
            },
        },
    ),
}
