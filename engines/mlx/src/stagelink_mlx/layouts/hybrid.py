"""Lays tensors of families with recurrent layers out as mlx_lm's modules have them.

It reads nothing and casts nothing; see ``layouts/usual.py``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from stagelink.engine import CheckpointError
from stagelink_mlx.layouts.usual import LAYOUTS, halves, stacked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink_mlx.layouts.usual import Arrays, Layout

__all__ = ["HYBRID_LAYOUTS"]

_KERNELS = (
    *("conv1d.weight", "conv.conv.weight", ".conv_1d.weight"),
    *(".key_conv.weight", ".value_conv.weight"),
)
_FLOATS = ("weight", "scales", "biases", "bias")


def _recurrent(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Short convolutions: kernels ``[channels, positions, 1]``, as mlx_lm's own files have them."""
    found = stacked(arrays, config)
    for name, array in found.items():
        if name.endswith(_KERNELS) and array.ndim == 3 and array.shape[1] == 1:
            found[name] = array.moveaxis(2, 1)
    return found


def _nemotron(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Nemotron-H: mlx_lm's experts without a gate have their two matrices numbered."""
    found = _recurrent(arrays, config)
    for old, new in ((".switch_mlp.up_proj.", ".fc1."), (".switch_mlp.down_proj.", ".fc2.")):
        for name in [one for one in found if old in one]:
            found[name.replace(old, f".switch_mlp{new}")] = found.pop(name)
    return found


def _kimi(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Kimi Linear: latent heads as DeepSeek-V3's, and three short convolutions."""
    return _recurrent(LAYOUTS["latent"](arrays, config), config)


def _kimi_k3(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Kimi K3: as Kimi Linear, with queries, keys and values of a delta layer in one matrix."""
    found = _kimi(arrays, config)
    heads = config["linear_attn_config"]["num_heads"]
    for name in [one for one in found if one.endswith((".A_log", ".dt_bias"))]:
        flat = found[name].flatten()
        # Some files have more numbers than heads, of which the first ones are meant.
        found[name] = flat[:heads] if name.endswith(".A_log") else flat
    for part in ("_proj", "_conv.conv"):
        for name in [one for one in found if f".k{part}." in one]:
            three = [name.replace(f".k{part}.", f".{one}{part}.") for one in "qkv"]
            joined = mx.concatenate([found.pop(one) for one in three])
            found[name.replace(f".k{part}.", f".qkv{part}.")] = joined
    return found


def _bailing_v3(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Ling 3: as Kimi Linear. transformers writes the last matrix of both kinds by one name."""
    is_delta = any(name.endswith(".A_log") for name in arrays)
    named = {
        name.replace(".attention.dense.", ".attention.o_proj.") if is_delta else name: one
        for name, one in arrays.items()
    }
    return _kimi(named, config)


def _granite(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """GraniteMoeHybrid: experts as Granite's; without experts one block, gate before up."""
    shared = {name: one for name, one in arrays.items() if ".shared_mlp." in name}
    rest = {name: one for name, one in arrays.items() if name not in shared}
    found = _recurrent(halves(rest, config), config)
    if config["num_local_experts"]:
        return found | shared
    for name, array in shared.items():
        stem, _, last = name.rpartition(".")
        at = stem.rpartition(".shared_mlp.")[0] + ".mlp"
        if stem.endswith(".input_linear"):
            gate, up = mx.split(array, 2, axis=0)
            found |= {f"{at}.gate_proj.{last}": gate, f"{at}.up_proj.{last}": up}
        else:
            found[f"{at}.down_proj.{last}"] = array
    return found


def _falcon(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Falcon-H1: the factors of its config, which mlx_lm's layers do not know, in its matrices.

    Raises:
        CheckpointError: ``tensor_shape`` for mlx_lm's own files: what it folds in is not all.
    """
    found = dict(arrays)
    for name, array in arrays.items():
        if name.endswith(_KERNELS):
            if array.shape[1] != 1:
                raise CheckpointError(
                    f"mlx engine: {name}: expected a kernel as transformers writes it, got one of "
                    "mlx_lm's own files, in which factors of the config are lost; use the original",
                    reason="tensor_shape",
                )
            found[name] = array.moveaxis(2, 1)
            continue
        stem, _, last = name.rpartition(".")
        factor = _factor(stem.rpartition(".")[2], config, is_bias=last == "bias")
        # Of a quantized matrix the scales and biases have it, and the packed numbers stay.
        if factor is not None and last in _FLOATS and array.dtype != mx.uint32:
            rows = factor.reshape(-1, *[1] * (array.ndim - 1))
            found[name] = array.astype(mx.float32) * rows
    return found


def _factor(part: str, config: Mapping[str, Any], *, is_bias: bool) -> mx.array | None:
    """Return what the outputs of a matrix are multiplied by, one number or one for each."""
    fed = 1.0 if is_bias else config["attention_in_multiplier"]
    factors = {
        "q_proj": fed,
        "k_proj": fed * config["key_multiplier"],
        "v_proj": fed,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "gate_proj": config["mlp_multipliers"][0],
        "down_proj": config["mlp_multipliers"][1],
    }
    if part != "in_proj":
        return mx.array(factors[part], mx.float32) if part in factors else None
    inner, states = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = (inner, inner, states, states, config["mamba_n_heads"])
    whole = 1.0 if is_bias else config["ssm_in_multiplier"]
    parts = zip(config["ssm_multipliers"], sizes, strict=True)
    return mx.concatenate([mx.full(size, whole * one) for one, size in parts])


def _turned_experts(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Qwen3-VL's experts: gate before up, ``[experts, in, out]`` in its own files.

    transformers 5 writes some of them turned; the way back down says which it is.
    """
    width, found = config["hidden_size"], dict(arrays)
    for name in arrays:
        stem = name.removesuffix(".experts.down_proj")
        if stem == name:
            continue
        down, both = found.pop(name), found.pop(f"{stem}.experts.gate_up_proj")
        if down.shape[1] != width:
            down, both = down.swapaxes(-1, -2), both.swapaxes(-1, -2)
        gate, up = mx.split(both, 2, axis=1)
        for part, one in (("down_proj", down), ("gate_proj", gate), ("up_proj", up)):
            found[f"{stem}.switch_mlp.{part}.weight"] = one
    return found


def _gemma4(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Gemma 4's experts: one tensor ``[experts, 2 * inner, width]`` has gate before up."""
    del config
    found: dict[str, mx.array] = {}
    for name, array in arrays.items():
        stem, _, last = name.rpartition(".")
        at = f"{stem}.switch_glu"
        if last == "gate_up_proj":
            gate, up = mx.split(array, 2, axis=1)
            found |= {f"{at}.gate_proj.weight": gate, f"{at}.up_proj.weight": up}
        else:
            found[f"{at}.down_proj.weight" if last == "down_proj" else name] = array
    return found


HYBRID_LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        "recurrent": _recurrent,
        "granite_hybrid": _granite,
        "falcon_hybrid": _falcon,
        "nemotron_hybrid": _nemotron,
        "turned_experts": _turned_experts,
        "gemma4": _gemma4,
        "kimi": _kimi,
        "kimi_k3": _kimi_k3,
        "bailing_v3": _bailing_v3,
    }
)
