"""Variants of configs for the MLX engine: torch's, and those that only MLX's layers can miss.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from tests.engines.mlx.rig import WITH_RECURRENCE
from tests.engines.torch.variants import ALL, Variant
from tests.engines.torch.variants import VARIANTS as _SHARED

_HEAD: dict[str, Any] = {"refused": "config_field", "field": "head_dim"}
# mlx_lm's layers have heads of an even share of the row alone.
_OTHER: Final[dict[str, dict[str, Any]]] = {
    "qwen2-wide_head": _HEAD,
    "mixtral-wide_head": _HEAD,
    "granite-wide_head": _HEAD,
    # With the ids of 5 transformers chooses another expert in one row than its model in float64
    # does (it is 0.6 off, this engine 2e-4).
    "qwen3_5_moe-partial_0.5": {"seed": 6},
    # No choice differs: with the ids of 4 the two are 3.3e-3 off float64 each. In layer 1, row
    # 156, a head is normed that has a thirtieth of the usual size, and what was rounded grows.
    "qwen3_next-equal_heads": {"seed": 6},
}


def _own() -> dict[str, Variant]:
    """Return variants that torch's table does not have."""
    found: dict[str, Variant] = {}
    for name in ALL:
        found[f"{name}-epsilon"] = Variant(name, {"rms_norm_eps": 0.3})
    for name in WITH_RECURRENCE:
        full_first = ["full_attention"] + ["linear_attention"] * 7
        found[f"{name}-order"] = Variant(
            name, {"layer_types": full_first}, {}, "layer_types", "layer_types"
        )
        every_second = ["linear_attention", "full_attention"] * 4
        found[f"{name}-every_2"] = Variant(name, {"layer_types": every_second})
        sizes = {"linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_num_key_heads": 1}
        # With the ids of 4 both are up to 1.9e-3 off from float64, as above: no choice differs.
        found[f"{name}-sizes"] = Variant(name, sizes, seed=6)
    for name in ("gemma3_text", "gpt_oss"):
        order = ["full_attention"] * 2 + ["sliding_attention"] * 6
        found[f"{name}-order"] = Variant(name, {"layer_types": order})
    found["qwen3_next-all_dense"] = Variant("qwen3_next", {"mlp_only_layers": list(range(8))})
    found["gpt_oss-alpha"] = Variant("gpt_oss", {}, {"swiglu_alpha": 1.1})
    # mlx_lm's own loader takes layer 61 for a drafter, whatever the number of layers.
    deep = {"num_hidden_layers": 63, "first_k_dense_replace": 60}
    found["deepseek_v3-deep"] = Variant("deepseek_v3", deep)
    every = {"n_group": 4, "topk_group": 4}
    found["deepseek_v3-all_groups"] = Variant("deepseek_v3", every)
    limited = {**every, "topk_method": "group_limited_greedy"}
    found["deepseek_v2-all_groups"] = Variant("deepseek_v2", limited)
    return found


_ALL: Final = {
    name: dataclasses.replace(one, **_OTHER.get(name, {}))
    for name, one in _SHARED.items()
    if not one.refused
} | _own()

VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
