"""Lays out tensors of families that came last, as mlx_lm's modules have them.

It reads nothing and casts nothing; see ``layouts/usual.py``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from stagelink_mlx.layouts.usual import LAYOUTS, stacked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink_mlx.layouts.usual import Arrays, Layout

__all__ = ["HANDED_LAYOUTS"]

_VECTORS = (".k_k", ".k_a", ".g_norm.weight", ".g_norm.bias")


def _grouped_heads(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Hunyuan: the heads that share a key lie together with it; up before gate; experts single."""
    found: dict[str, mx.array] = {}
    shared = config["num_key_value_heads"]
    group = config["num_attention_heads"] // shared
    for name, array in arrays.items():
        stem, _, last = name.rpartition(".")
        at, _, part = stem.rpartition(".")
        if part == "qkv_proj":
            heads = mx.unflatten(array, 0, (shared, group + 2, -1))
            parts = mx.split(heads, [group, group + 1], axis=1)
            for new, one in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
                found[f"{at}.{new}.{last}"] = one.flatten(0, 2)
        elif part == "gate_and_up_proj":
            up, gate = mx.split(array, 2, axis=0)
            found |= {f"{at}.up_proj.{last}": up, f"{at}.gate_proj.{last}": gate}
        else:
            found[name] = array
    return stacked(found, config)


def _heads_of_vectors(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """RWKV-7: vectors of the width are rows of heads there."""
    return {
        name: array.reshape(-1, config["head_dim"]) if name.endswith(_VECTORS) else array
        for name, array in arrays.items()
    }


def _idle_experts(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """LongCat-Flash: latent heads; transformers writes matrices of experts that do nothing, too."""
    found = {}
    for name, array in arrays.items():
        number = name.partition(".mlp.experts.")[2].partition(".")[0]
        if not number.isdigit() or int(number) < config["n_routed_experts"]:
            found[name] = array
    return LAYOUTS["latent"](found, config)


def _numbered_blocks(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Phixtral: its experts are numbered blocks of two matrices with biases."""
    found: dict[str, mx.array] = {}
    for name, array in arrays.items():
        at, _, rest = name.partition(".moe.mlp.")
        if not rest:
            found[name] = array
        elif rest.startswith("0."):
            each = [f"{at}.moe.mlp.{n}.{rest[2:]}" for n in range(config["num_local_experts"])]
            if not arrays.keys() >= set(each):
                # What is missing is said by whoever holds the names against the layer's.
                return dict(arrays)
            found[f"{at}.moe.switch_mlp.{rest[2:]}"] = mx.stack([arrays[one] for one in each])
    return found


HANDED_LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        "grouped_heads": _grouped_heads,
        "heads_of_vectors": _heads_of_vectors,
        "idle_experts": _idle_experts,
        "numbered_blocks": _numbered_blocks,
    }
)
