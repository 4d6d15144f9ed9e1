"""Tiny LongCat-Flash models and variants of their configs, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.engines.torch.variants import Variant

__all__ = ["LONGCAT", "REFUSED", "VARIANTS"]

_PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}

# As `stagelink_conformance.families.FAMILIES` has them.
LONGCAT: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "longcat_flash": (
        "longcat_flash",
        {
            "rope_parameters": dict(_PLAIN),
            "num_hidden_layers": 16,
            "num_key_value_heads": 4,
            "ffn_hidden_size": 96,
            "expert_ffn_hidden_size": 32,
            "head_dim": 8,
            "q_lora_rank": 40,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 12,
            "moe_topk": 4,
            "n_routed_experts": 8,
            "zero_expert_num": 4,
            "routed_scaling_factor": 1.5,
        },
    ),
}


def _with(**changes: object) -> Variant:
    return Variant("longcat_flash", changes)


def _refused(file: dict[str, Any], field: str = "", reason: str = "config_field") -> Variant:
    return Variant("longcat_flash", {}, file, reason, field or next(iter(file)))


# What the released file says beside what the layers read.
_RELEASED: Final = {
    "attention_method": "MLA",
    "mla_scale_kv_lora": True,
    "mla_scale_q_lora": True,
    "norm_topk_prob": False,
    "num_key_value_heads": None,
    "qk_head_dim": None,
    "rope_parameters": None,
    "rope_theta": 30000.0,
    "router_bias": False,
    "zero_expert_type": "identity",
}
_YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 30000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_ALL: Final[dict[str, Variant]] = {
    f"longcat_flash-{name}": one
    for name, one in {
        "two_layers": _with(num_hidden_layers=4, vocab_size=259),
        "one_layer": _with(num_hidden_layers=2),
        "as_it_is": _with(),
        "bfloat16_file": Variant("longcat_flash", stored="bfloat16"),
        "released": Variant("longcat_flash", {}, _RELEASED),
        # Of one expert alone transformers' own code makes no sum.
        "uses_2": _with(moe_topk=2),
        "uses_all": _with(moe_topk=12),
        "none_idle": _with(zero_expert_num=0),
        "most_idle": _with(zero_expert_num=24),
        "biases": _with(attention_bias=True),
        "yarn": _with(rope_parameters=_YARN),
        "linear": _with(rope_parameters={**_PLAIN, "rope_type": "linear", "factor": 2.0}),
        "wide_values": _with(v_head_dim=24),
        "epsilon": _with(rms_norm_eps=0.3),
        "dynamic": _refused(
            {"rope_parameters": {**_PLAIN, "rope_type": "dynamic", "factor": 2.0}},
            "dynamic",
            "rope_scaling",
        ),
        "normed": _refused({"norm_topk_prob": True}),
        "no_small_queries": _refused({"q_lora_rank": None}),
        "router_bias": _refused({"router_bias": True}),
        "unscaled": _refused({"mla_scale_q_lora": False}),
        "zeros": _refused({"zero_expert_type": "zero"}),
        "head_width": _refused({"head_dim": 16}),
        "other_head_width": _refused({"qk_head_dim": 16}),
        "uses_more": _refused({"moe_topk": 13}),
        "fewer_key_heads": _refused({"num_key_value_heads": 2}),
        "odd_layers": _refused({"num_hidden_layers": 4}),
        "activation": _refused({"hidden_act": "relu"}),
        "unknown": _refused({"rows_twisted": 3}),
    }.items()
}
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
