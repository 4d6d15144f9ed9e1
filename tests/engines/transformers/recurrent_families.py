"""Tiny models of families with Mamba layers, outside the table, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ANEW", "CLAMPED", "LAYERS", "PLAIN", "RECURRENT"]

LAYERS: Final = 4
_LINEAR, _FULL = "linear_attention", "full_attention"
_MIXER: Final = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
# Limits that bind, since those of a drawn model's time steps do not.
_LIMITS: Final = {"time_step_limit": [0.1, 0.5]}
_ROUTED: Final = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}
_TYPES: Final = {"layer_types": [_LINEAR, _FULL, _LINEAR, _LINEAR]}
_BAMBA: Final = {**_MIXER, "attn_layer_indices": [1]}
_NEMOTRON: Final[dict[str, Any]] = {
    "layers_block_type": [_LINEAR, "mlp", _FULL, _LINEAR],
    "ssm_state_size": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "head_dim": 16,
}
_SECOND: Final = {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2}

# As `stagelink_conformance.families.FAMILIES` has them. Time steps of several rows are bounded, and
# those of a single one are not.
CLAMPED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "bamba": ("bamba", {**_BAMBA, **_LIMITS}),
    "granitemoehybrid": (
        "granitemoehybrid",
        {**_MIXER, **_TYPES, **_ROUTED, **_LIMITS, "shared_intermediate_size": 48},
    ),
    "mamba2": ("mamba2", {**_SECOND, **_LIMITS}),
    "nemotron_h": ("nemotron_h", {**_NEMOTRON, "time_step_min": 0.5}),
}
# A call of several rows begins without a state.
ANEW: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "falcon_mamba": ("falcon_mamba", {"state_size": 8}),
    "jamba": (
        "jamba",
        {
            "attn_layer_period": 4,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
        },
    ),
    "mamba": ("mamba", {"state_size": 8}),
}
# Both paths are one formula.
PLAIN: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "bamba-plain": ("bamba", dict(_BAMBA)),
    "falcon_h1": (
        "falcon_h1",
        {**_MIXER, "mamba_d_ssm": 128, "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7]},
    ),
    "mamba2-plain": ("mamba2", dict(_SECOND)),
}
RECURRENT: Final = {**CLAMPED, **ANEW, **PLAIN}
