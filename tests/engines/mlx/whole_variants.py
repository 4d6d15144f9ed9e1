"""Configs of families that mlx_lm alone defines, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.held_whole import WholeVariant

__all__ = ["WHOLE_REFUSED", "WHOLE_VARIANTS"]

_ROUTED: Final[dict[str, Any]] = {"moe_intermediate_size": 32, "num_experts_per_tok": 3}
_BAILING: Final = WholeVariant(
    "bailing_moe",
    {
        **_ROUTED,
        "num_experts": 8,
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "rope_theta": 20000.0,
        "first_k_dense_replace": 2,
        "partial_rotary_factor": 0.5,
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "routed_scaling_factor": 1.5,
        "n_group": 4,
        "topk_group": 2,
        "use_qk_norm": True,
    },
    names=((".mlp.gate.gate_proj.", ".mlp.gate."),),
)
_DEEPSEEK: Final = WholeVariant(
    "deepseek",
    {
        **_ROUTED,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "rope_theta": 20000.0,
    },
)
_KLEAR: Final = WholeVariant(
    "Klear",
    {
        **_ROUTED,
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts": 8,
        "rope_theta": 20000.0,
    },
)
_BASES: Final = {one.module: one for one in (_BAILING, _DEEPSEEK, _KLEAR)}


def _with(base: WholeVariant, fields: dict[str, Any], refused: str = "") -> WholeVariant:
    """Return a variant with other fields; a refused one is refused by the last of them."""
    field = list(fields)[-1] if refused else ""
    return dataclasses.replace(base, fields={**base.fields, **fields}, refused=refused, field=field)


def _shared() -> dict[str, WholeVariant]:
    found: dict[str, WholeVariant] = {}
    for name, base in _BASES.items():
        found[f"{name}-two_layers"] = _with(base, {"num_hidden_layers": 2, "vocab_size": 259})
        found[f"{name}-as_it_is"] = base
        found[f"{name}-stacked"] = dataclasses.replace(base, is_stacked=True)
        found[f"{name}-one_kv_head"] = _with(base, {"num_key_value_heads": 1})
        found[f"{name}-uses_1"] = _with(base, {"num_experts_per_tok": 1})
        found[f"{name}-activation"] = _with(base, {"hidden_act": "relu"}, "config_field")
        found[f"{name}-unknown"] = _with(base, {"rows_twisted": 3}, "config_field")
        dynamic = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
        found[f"{name}-dynamic"] = dataclasses.replace(
            _with(base, dynamic, "rope_scaling"), field="dynamic"
        )
    return found


def _own() -> dict[str, WholeVariant]:
    found: dict[str, WholeVariant] = {}
    plain = {
        "score_function": None,
        "moe_router_enable_expert_bias": None,
        "n_group": None,
        "topk_group": None,
        "use_qk_norm": None,
    }
    found["bailing_moe-first_files"] = _with(_BAILING, {**plain, "num_shared_experts": 2})
    for key, value in (
        ("tie_word_embeddings", True),
        ("norm_topk_prob", False),
        ("use_bias", True),
        ("use_qkv_bias", True),
        ("n_group", 1),
        ("num_shared_experts", 0),
        ("moe_shared_expert_intermediate_size", 40),
        ("rotary_dim", 4),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ):
        found[f"bailing_moe-{key}"] = _with(_BAILING, {key: value})
    for key in ("norm_head", "norm_softmax", "multi_gate"):
        found[f"bailing_moe-{key}"] = _with(_BAILING, {key: True}, "config_field")
    for key, value in (
        ("attention_bias", True),
        ("moe_layer_freq", 2),
        ("n_shared_experts", None),
        ("n_routed_experts", None),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
    ):
        found[f"deepseek-{key}"] = _with(_DEEPSEEK, {key: value})
    for key, value in (("norm_topk_prob", True), ("scoring_func", "sigmoid")):
        found[f"deepseek-{key}"] = _with(_DEEPSEEK, {key: value}, "config_field")
    for key, value in (
        ("attention_bias", True),
        ("decoder_sparse_step", 2),
        ("mlp_only_layers", [1, 3]),
        ("norm_topk_prob", False),
        ("n_shared_experts", 2),
    ):
        found[f"Klear-{key}"] = _with(_KLEAR, {key: value})
    return found


_ALL: Final = _shared() | _own()
WHOLE_VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
WHOLE_REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
