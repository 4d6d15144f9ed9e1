"""Lays tensors out as mlx_lm's modules have them: experts stacked, kernels turned, norms with a 1.

It reads nothing and casts nothing: the arrays of one part of a model in, arrays out, all lazily.
mlx_lm's own ``sanitize`` guesses from all tensors of a file what has been done to them; here the
checkpoint has settled that, so a layout is the family's and the same for every part.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from stagelink.engine import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Arrays = Mapping[str, mx.array]
    Layout = Callable[[Arrays, Mapping[str, Any]], dict[str, mx.array]]

__all__ = ["LAYOUTS", "halves", "stacked"]

_EXPERT = re.compile(r"(.*\.)experts\.(\d+)\.(\w+)\.(weight|scales|biases)")
# Mixtral's names of gate, down and up; DBRX calls the last one otherwise.
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "v1": "up_proj"}
_CONV = ".linear_attn.conv1d.weight"
# Norms of the Gated DeltaNet families that multiply by 1 + weight.
_SHIFTED = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)
_LATENT = ".kv_b_proj.weight"
_CORRECTION = ".e_score_correction_bias"


def _as_it_is(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    del config
    return dict(arrays)


def stacked(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Stack what belongs to single experts; part a stack that has gate before up in one tensor.

    Raises:
        CheckpointError: ``quantization`` for experts of unlike bits or groups in one layer.
    """
    del config
    found: dict[str, mx.array] = {}
    stacks: dict[str, dict[int, mx.array]] = {}
    for name, array in arrays.items():
        match = _EXPERT.fullmatch(name)
        at, _, last = name.rpartition(".experts.")
        if last == "gate_up_proj":
            gate, up = mx.split(array, 2, axis=1)
            for part, half in (("gate_proj", gate), ("up_proj", up)):
                found[f"{at}.switch_mlp.{part}.weight"] = half
        elif last == "down_proj":
            found[f"{at}.switch_mlp.down_proj.weight"] = array
        elif match is None:
            found[name] = array
        else:
            at, expert, part, side = match.groups()
            stack = stacks.setdefault(f"{at}switch_mlp.{_PARTS.get(part, part)}.{side}", {})
            stack[int(expert)] = array
    for name, stack in stacks.items():
        shapes = {one.shape for one in stack.values()}
        if len(shapes) > 1:
            raise CheckpointError(
                f"mlx engine: {name}: expected all experts of a layer with the same bits in the "
                f"same groups, got parts of shapes {sorted(map(list, shapes))}; use --engine torch",
                reason="quantization",
            )
        found[name] = mx.stack([stack[expert] for expert in sorted(stack)])
    return found


def _flat_correction(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """ERNIE: the experts' correction comes as one row ``[1, experts]``."""
    found = stacked(arrays, config)
    for name, array in found.items():
        if name.endswith(_CORRECTION):
            found[name] = array.flatten()
    return found


def _stacked_in_place(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Stack single experts under the name that they have."""
    found = stacked(arrays, config)
    return {name.replace(".switch_mlp.", ".experts."): one for name, one in found.items()}


def _delta(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Gated DeltaNet: kernels ``[channels, positions, 1]``, and the sum 1 + weight as the norm."""
    found = stacked(arrays, config)
    for name, array in found.items():
        if name.endswith(_CONV):
            found[name] = array.moveaxis(2, 1)
        elif name.endswith(_SHIFTED):
            found[name] = array + 1.0
    return found


def _latent(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """DeepSeek-V3: what makes keys of a latent, turned, and what makes values, a matrix a head."""
    found = stacked(arrays, config)
    heads, plain = config["num_attention_heads"], config["qk_nope_head_dim"]
    for name in [one for one in found if one.endswith(_LATENT)]:
        stem, both = name.removesuffix(_LATENT), found.pop(name)
        both = both.reshape(heads, plain + config["v_head_dim"], -1)
        found[f"{stem}.embed_q.weight"] = both[:, :plain].swapaxes(-1, -2)
        found[f"{stem}.unembed_out.weight"] = both[:, plain:]
    return found


def halves(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Granite's experts: one tensor ``[experts, 2 * inner, width]`` has gate before up."""
    del config
    found: dict[str, mx.array] = {}
    for name, array in arrays.items():
        stem, _, last = name.rpartition(".")
        if stem.endswith(".input_linear"):
            at = stem.removesuffix("input_linear") + "switch_mlp"
            gate, up = mx.split(array, 2, axis=1)
            found |= {f"{at}.gate_proj.{last}": gate, f"{at}.up_proj.{last}": up}
        else:
            found[name.replace(".output_linear.", ".switch_mlp.down_proj.")] = array
    return found


def _joined_halves(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """MiniMax-M3: gate before up in one matrix; what all rows share perhaps as one more expert."""
    found, experts = stacked(arrays, config), config["num_local_experts"]
    for name in [one for one in found if ".switch_mlp." in one]:
        if found[name].shape[0] == experts + 1:
            shared = name.replace(".switch_mlp.", ".shared_experts.")
            found[name], found[shared] = found[name][:experts], found[name][experts]
    for name in [one for one in found if ".gate_up_proj." in one]:
        gate, up = mx.split(found.pop(name), 2, axis=-2)
        for part, half in (("gate_proj", gate), ("up_proj", up)):
            found[name.replace("gate_up_proj", part)] = half
    return found


def _turned_halves(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Llama 4's experts: one tensor ``[experts, in, 2 * inner]`` has gate before up."""
    del config
    found: dict[str, mx.array] = {}
    for name, array in arrays.items():
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            gate, up = mx.split(array.swapaxes(-1, -2), 2, axis=1)
            found |= {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
        elif last == "down_proj" and array.ndim == 3:
            found[f"{name}.weight"] = array.swapaxes(-1, -2)
        else:
            found[name] = array
    return found


def _rows_of_experts(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """DBRX: the rows of all experts in one matrix ``[experts * inner, width]``, down turned too."""
    found: dict[str, mx.array] = {}
    for name, array in arrays.items():
        stem, _, part = name.rpartition(".experts.mlp.")
        if not stem:
            found[name] = array
            continue
        stack = mx.unflatten(array, 0, (config["ffn_config"]["moe_num_experts"], -1))
        turned = stack.swapaxes(-1, -2) if part == "w2" else stack
        found[f"{stem}.switch_mlp.{_PARTS[part]}.weight"] = turned
    return stacked(found, config)


def _split_experts(arrays: Arrays, config: Mapping[str, Any]) -> dict[str, mx.array]:
    """gpt_oss: one tensor ``[experts, in, out]`` has gate and up in turn; make them ``[out, in]``.

    mlx_lm's loader takes the packed form of these tensors only.
    """
    del config
    found: dict[str, mx.array] = {}
    for name, array in arrays.items():
        stem, _, last = name.rpartition(".")
        side = "bias" if last.endswith("_bias") else "weight"
        turned = array.swapaxes(-1, -2) if side == "weight" and array.ndim == 3 else array
        if last.startswith("gate_up_proj"):
            rows = turned[..., None] if side == "bias" else turned
            for at, part in enumerate(("gate_proj", "up_proj")):
                half = rows[:, at::2]
                found[f"{stem}.{part}.{side}"] = half[..., 0] if side == "bias" else half
        elif last.startswith("down_proj") and stem.endswith(".experts"):
            found[f"{stem}.down_proj.{side}"] = turned
        else:
            found[name] = array
    return found


LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        "as_it_is": _as_it_is,
        "stacked": stacked,
        "delta": _delta,
        "flat_correction": _flat_correction,
        "halves": halves,
        "latent": _latent,
        "joined_halves": _joined_halves,
        "rows_of_experts": _rows_of_experts,
        "stacked_in_place": _stacked_in_place,
        "split_experts": _split_experts,
        "turned_halves": _turned_halves,
    }
)
