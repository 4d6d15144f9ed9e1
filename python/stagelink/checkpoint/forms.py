"""Brings the tensors of a folder into the one form that families know, whatever tool wrote them.

It reads no tensor data. Names become those of transformers' own files, stacked experts become one
tensor each, and quantized weights with their scales become one tensor that reads as floats.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from stagelink.checkpoint.affine import Affine, asked
from stagelink.checkpoint.config_fields import SAME_AS
from stagelink.checkpoint.latent_heads import joined_heads
from stagelink.checkpoint.limits import EXPERTS_MAX
from stagelink.checkpoint.opened import TensorInfo
from stagelink.checkpoint.packed_floats import MXFP4_GROUP, BlockFp8, Mxfp4
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.safetensors_file import Placed

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from pathlib import Path

    from stagelink.checkpoint.safetensors_file import Form, SafetensorsReader

# How older files of composite models, and MLX, call what transformers 5 calls otherwise.
_ALIASES: Final = {
    "language_model.model.": "model.language_model.",
    "language_model.lm_head.": "lm_head.",
}
_KEYS: Final = ("quantization", "quantization_config")
_AFFINE: Final = "affine"
# MLX's own, of which a module's entry may leave one out (mlx_lm writes such entries).
_MEANT: Final = {"bits": 4, "group_size": 64}
_AFFINE_KEYS: Final = ("bits", "group_size", "mode")
# What of a composite model reads pictures or sounds; nothing here does.
_SENSES: Final = (
    "audio_tower", "embed_audio", "embed_vision", "mm_projector", "multi_modal_projector",
    "vision_adapter", "vision_embedder", "vision_model", "vision_projection", "vision_tower",
    "visual",
)  # fmt: skip
_PICTURES: Final = tuple(f"{at}{part}." for at in ("", "model.") for part in _SENSES)
# Families whose files exist with stacked experts and with single ones.
_EXPERTS: Final = (
    "deepseek_v2", "deepseek_v3", "mixtral", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_moe",
    "qwen3_next",
)  # fmt: skip
_STACKS: Final = {
    ".mlp.experts.down_proj": ("down_proj",),
    ".mlp.experts.gate_up_proj": ("gate_proj", "up_proj"),
    ".mlp.switch_mlp.down_proj.weight": ("down_proj",),
    ".mlp.switch_mlp.gate_proj.weight": ("gate_proj",),
    ".mlp.switch_mlp.up_proj.weight": ("up_proj",),
    ".block_sparse_moe.switch_mlp.down_proj.weight": ("w2",),
    ".block_sparse_moe.switch_mlp.gate_proj.weight": ("w1",),
    ".block_sparse_moe.switch_mlp.up_proj.weight": ("w3",),
}
# Families whose norms multiply by 1 + weight; MLX's own files hold the sum.
_SHIFTED: Final = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
_SHIFTED_NORMS: Final = (
    ".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight",
    "language_model.norm.weight", ".q_norm.weight", ".k_norm.weight",
)  # fmt: skip
_CONV: Final = ".linear_attn.conv1d.weight"
_FP8_KEYS: Final = (
    "activation_scheme", "fmt", "modules_to_not_convert", "quant_method", "scale_fmt",
    "weight_block_size",
)  # fmt: skip
_ADVICE: Final = "use a checkpoint in F32, F16, BF16, MLX affine, FP8 blocks, or a GGUF"


@dataclasses.dataclass(frozen=True, slots=True)
class Shifted:
    """A norm that is stored one too large."""

    info: TensorInfo
    stored: Placed

    def part(self, rows: tuple[int, int] | None) -> Shifted:
        """Return this one: a norm has no rows."""
        del rows
        return self

    def floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return float32, one less than what is stored; exact between 0.5 and 2."""
        values = reader.floats(self.stored)
        values -= np.float32(1.0)
        return values

    def rounded_floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return what ``floats`` does."""
        return self.floats(reader)

    def bits_of(self, reader: SafetensorsReader) -> np.ndarray:
        """Return what ``floats`` does: the stored bits are not the tensor's."""
        return self.floats(reader)


def logical_forms(
    config: Mapping[str, Any], placed: Mapping[str, Placed], where: Path
) -> tuple[dict[str, Any], dict[str, Form]]:
    """Return the config without what was settled here, and every tensor by its usual name.

    Raises:
        CheckpointError: ``quantization`` for one that is not done, or that contradicts the files.
    """
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    said = inner.get("model_type") or config.get("model_type")
    model_type = SAME_AS.get(said, said) if isinstance(said, str) else said
    settings = next((c[k] for c in (config, inner) for k in _KEYS if c.get(k) is not None), None)
    # Older files that read pictures have the text's fields beside the pictures'.
    has_pictures = bool(inner) or isinstance(config.get("vision_config"), dict)
    named = {
        name: one
        for name, one in placed.items()
        if not (has_pictures and name.startswith(_PICTURES))
    }
    forms: dict[str, Form] = {}
    if settings is not None:
        forms = _quantized(settings, named, where)
        config = {key: value for key, value in config.items() if key not in _KEYS}
        if inner:
            config["text_config"] = {k: v for k, v in inner.items() if k not in _KEYS}
    forms |= _mlx_layout(model_type, named)
    forms |= {name: one for name, one in named.items() if name not in forms}
    forms = _once(((_usual(name), one) for name, one in forms.items()), where)
    if model_type == "deepseek_v3":
        forms = joined_heads(forms)
    if model_type in _EXPERTS:
        forms = _once(_single_experts(forms), where)
    return dict(config), forms


def senses_left_out(source: Iterable[str], kept: Container[str]) -> int:
    """Return how many tensors of a source read pictures or sounds, and were left out for it."""
    return sum(name.startswith(_PICTURES) and name not in kept for name in source)


def _quantized(settings: object, named: dict[str, Placed], where: Path) -> dict[str, Form]:
    """Take the parts of quantized tensors out of ``named`` and return them put together."""
    if isinstance(settings, dict) and asked(settings) is not None:
        return _affine(settings, named, where)
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if isinstance(settings, dict) and method == "fp8":
        return _fp8(settings, named, where)
    if method == "mxfp4":
        return _mxfp4(named, where)
    mode = settings.get("mode", _AFFINE) if isinstance(settings, dict) else _AFFINE
    if mode != _AFFINE:
        raise _refused(where, "MLX's mode affine", shown(mode))
    raise _refused(where, "affine of 2 to 8 bits, fp8 or mxfp4", shown(method or settings))


def _affine(settings: dict[str, Any], named: dict[str, Placed], where: Path) -> dict[str, Form]:
    _check_modules(settings, named, where)
    found: dict[str, Form] = {}
    for scales in [name for name in named if name.endswith(".scales")]:
        stem = scales.removesuffix(".scales")
        own = settings.get(stem, True)
        # MLX's true: as all the others are.
        own = settings if own is True else own
        mode = own.get("mode", _AFFINE) if isinstance(own, dict) else _AFFINE
        if mode != _AFFINE:
            raise _refused(where, f"MLX's mode affine for {shown(stem)}", shown(mode))
        if isinstance(own, dict) and own and own is not settings:
            own = _MEANT | own
        how = asked(own)
        parts = [named.pop(f"{stem}.{part}", None) for part in ("weight", "scales", "biases")]
        weight, scale, bias = parts
        if how is None or weight is None or scale is None or bias is None:
            raise _refused(where, "weight, scales and biases of affine values", shown(stem))
        one = Affine.of(f"{stem}.weight", (weight, scale, bias), *how)
        if one is None:
            got = f"{list(weight.info.shape)} and {list(scale.info.shape)} of {shown(stem)}"
            raise _refused(where, f"shapes of {how[0]} bits in groups of {how[1]}", got)
        found[f"{stem}.weight"] = one
    return found


def _check_modules(settings: dict[str, Any], named: Iterable[str], where: Path) -> None:
    """Refuse a key that is neither a setting nor a quantized module: it would mean nothing."""
    modules = {name.removesuffix(".scales") for name in named if name.endswith(".scales")}
    for key, value in settings.items():
        # MLX's false: this one is not quantized. A module that is not here is not, either.
        is_known = key in _AFFINE_KEYS or key in modules or key.startswith(_PICTURES)
        if not is_known and value is not False:
            raise refuse(
                "quantization", where,
                expected="every key of MLX's quantization to be "
                f"{', '.join(_AFFINE_KEYS)} or a quantized module of the folder",
                got=shown(key),
                advice="correct the key in config.json, or export the checkpoint again",
            )  # fmt: skip


def _fp8(settings: dict[str, Any], named: dict[str, Placed], where: Path) -> dict[str, Form]:
    unknown = [key for key in settings if key not in _FP8_KEYS]
    block = settings.get("weight_block_size")
    sizes = block if isinstance(block, list) else []
    right = len(sizes) == 2 and all(type(one) is int and 1 <= one <= 1 << 16 for one in sizes)
    if unknown or not right or settings.get("fmt", "e4m3") != "e4m3":
        raise _refused(where, "fp8 e4m3 with weight_block_size", shown(settings))
    found: dict[str, Form] = {}
    for scales in [name for name in named if name.endswith(".weight_scale_inv")]:
        name = scales.removesuffix("_scale_inv")
        weight, scale = named.pop(name, None), named.pop(scales)
        if weight is None or not _fits(weight, scale, (sizes[0], sizes[1])):
            raise _refused(where, f"an F8_E4M3 matrix for {shown(scales)}", "another one")
        info = dataclasses.replace(
            weight.info, dtype="FP8_BLOCK", nbytes=weight.info.nbytes + scale.info.nbytes
        )
        found[name] = BlockFp8(info, weight, scale, (sizes[0], sizes[1]))
    return found


def _fits(weight: Placed, scale: Placed, block: tuple[int, int]) -> bool:
    shape = weight.info.shape
    if weight.info.dtype != "F8_E4M3" or len(shape) != 2:
        return False
    wanted = tuple(-(-size // one) for size, one in zip(shape, block, strict=True))
    return scale.info.shape == wanted and scale.info.dtype in ("F32", "BF16", "F16")


def _mxfp4(named: dict[str, Placed], where: Path) -> dict[str, Form]:
    found: dict[str, Form] = {}
    for blocks in [name for name in named if name.endswith("_blocks")]:
        name = blocks.removesuffix("_blocks")
        packed, scale = named.pop(blocks), named.pop(f"{name}_scales", None)
        shape = packed.info.shape
        right = (
            scale is not None
            and len(shape) == 4
            and shape[3] == MXFP4_GROUP // 2
            and (packed.info.dtype, scale.info.dtype) == ("U8", "U8")
            and scale.info.shape == shape[:3]
        )
        if not right or scale is None:
            raise _refused(where, f"MXFP4 blocks and scales of {shown(name)}", "others")
        nbytes = packed.info.nbytes + scale.info.nbytes
        info = TensorInfo(name, "MXFP4", (shape[0], shape[2] * MXFP4_GROUP, shape[1]), nbytes)
        found[name] = Mxfp4(info, packed, scale)
    return found


def _mlx_layout(model_type: object, named: dict[str, Placed]) -> dict[str, Form]:
    """Undo what MLX does to Gated DeltaNet models: it turns kernels round and adds 1 to norms."""
    kernels = [name for name in named if name.endswith(_CONV)]
    turned = [name for name in kernels if named[name].info.shape[2:] == (1,)]
    if model_type not in _SHIFTED or not turned:
        return {}
    found: dict[str, Form] = {}
    for name in turned:
        one = named[name]
        # The axis of one value may stand at either place: the bytes are the same.
        channels, kernel, _ = one.info.shape
        info = dataclasses.replace(one.info, shape=(channels, 1, kernel))
        found[name] = dataclasses.replace(one, info=info)
    for name, one in named.items():
        if name.endswith(_SHIFTED_NORMS) and len(one.info.shape) == 1:
            found[name] = Shifted(dataclasses.replace(one.info, dtype="F32"), one)
    return found


def _single_experts(forms: dict[str, Form]) -> list[tuple[str, Form]]:
    """Return all tensors with each stack of experts as one tensor an expert and part."""
    found: list[tuple[str, Form]] = []
    for name, one in forms.items():
        stack = next((end for end in _STACKS if name.endswith(end)), None)
        parts = _STACKS[stack] if stack is not None else ()
        if stack is None or not _is_stack(one, len(parts)):
            # What is no stack keeps its name, and no family has a name for it.
            found.append((name, one))
            continue
        at = name.removesuffix(stack) + stack[: stack.index(".", 1)] + ".experts."
        for expert in range(one.info.shape[0]):
            whole = one.inner(expert, name)
            rows = whole.info.shape[0] // len(parts)
            found += [
                (
                    f"{at}{expert}.{part}.weight",
                    whole.part((number * rows, (number + 1) * rows)),
                )
                for number, part in enumerate(parts)
            ]
    return found


def _is_stack(one: Form, parts: int) -> TypeGuard[Placed | Affine]:
    shape = one.info.shape
    right = len(shape) == 3 and shape[0] <= EXPERTS_MAX and shape[1] % parts == 0
    return right and isinstance(one, Placed | Affine)


def _once(pairs: Iterable[tuple[str, Form]], where: Path) -> dict[str, Form]:
    """Return a table in which every name stands once, each tensor under its own."""
    found: dict[str, Form] = {}
    for name, one in pairs:
        if name in found:
            expected, got = f"{shown(name)} once", "two that come to be called so"
            advice = "fetch or export the checkpoint again"
            raise refuse("tensor_duplicate", where, expected=expected, got=got, advice=advice)
        found[name] = _renamed(one, name)
    return found


def _usual(name: str) -> str:
    for alias, usual in _ALIASES.items():
        if name.startswith(alias):
            return usual + name.removeprefix(alias)
    return name


def _renamed(one: Form, name: str) -> Form:
    if one.info.name == name:
        return one
    # Every form is a dataclass, which the protocol cannot say.
    held: Any = one
    renamed: Form = dataclasses.replace(held, info=dataclasses.replace(one.info, name=name))
    return renamed


def _refused(where: Path, expected: str, got: str) -> Exception:
    return refuse("quantization", where, expected=expected, got=got, advice=_ADVICE)
