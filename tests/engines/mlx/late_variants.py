"""Variants of the configs of the families of ``late_families.py``, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.engines.mlx.late_families import LATE
from tests.engines.torch.variants import Variant

__all__ = ["REFUSED", "VARIANTS"]

_ATTENTION: Final[dict[str, Any]] = LATE["dbrx"][1]["attn_config"]
_FEED_FORWARD: Final[dict[str, Any]] = LATE["dbrx"][1]["ffn_config"]


def _refused(
    family: str, file: dict[str, Any], field: str, reason: str = "config_field"
) -> Variant:
    return Variant(family, {}, file, reason, field)


def _dbrx() -> dict[str, Variant]:
    found = {
        "two_layers": Variant("dbrx", {"num_hidden_layers": 2, "vocab_size": 259}),
        "as_it_is": Variant("dbrx"),
        "bfloat16_file": Variant("dbrx", stored="bfloat16"),
        "tied": _refused("dbrx", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        "unknown": _refused("dbrx", {"rows_twisted": 3}, "rows_twisted"),
        "other_theta": _refused(
            "dbrx", {"rope_parameters": {"rope_theta": 10000.0}}, "30000", "config_field"
        ),
        "no_theta": _refused("dbrx", {"attn_config": {"kv_n_heads": 2}}, "attn_config.rope_theta"),
    }
    one_head = {"attn_config": {**_ATTENTION, "kv_n_heads": 1}, "num_key_value_heads": 1}
    found["one_kv_head"] = Variant("dbrx", one_head)
    found["wide_bound"] = Variant("dbrx", {"attn_config": {**_ATTENTION, "clip_qkv": 8}})
    found["other_heads"] = _refused("dbrx", {"num_key_value_heads": 1}, "num_key_value_heads")
    for name, more in (
        ("uses_1", {"moe_top_k": 1}),
        ("uses_all", {"moe_top_k": 8}),
        ("shares_as_they_are", {"moe_normalize_expert_weights": None}),
    ):
        found[name] = Variant("dbrx", {"ffn_config": {**_FEED_FORWARD, **more}})
    for key, value in (("clip_qkv", None), ("clip_qkv", -1.0), ("clip_kv", 3.0)):
        said = {"attn_config": {**_ATTENTION, key: value}}
        found[f"{key}_{value}"] = _refused("dbrx", said, f"attn_config.{key}")
    for key, value in (
        ("ffn_act_fn", {"name": "relu"}),
        ("hidden_size", 32),
        ("moe_normalize_expert_weights", 2.0),
        ("moe_top_k", 9),
        ("ffn_hidden_size", 0),
        ("rows_twisted", 1),
    ):
        said = {"ffn_config": {**_FEED_FORWARD, key: value}}
        found[f"ffn_{key}"] = _refused("dbrx", said, f"ffn_config.{key}")
    return {f"dbrx-{name}": one for name, one in found.items()}


_ALL: Final = _dbrx()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
