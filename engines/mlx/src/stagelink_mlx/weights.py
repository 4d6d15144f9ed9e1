"""A checkpoint's tensors under the names, shapes and layouts of mlx_lm's layers, part by part.

It runs nothing. mlx_lm decides some layouts by looking at all tensors of a model (whether norms
still lack their ``+ 1``, whether experts are stacked); a part of a model would mislead it. So it is
always shown the whole index: the tensors of the part as they are, every other one as an array that
is never evaluated and takes no memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from stagelink.engine import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagelink.engine import Checkpoint, Family
    from stagelink_mlx.recipes import Recipe

__all__ = ["Weights"]

_STORED = ("F32", "F16", "BF16")
# mlx_lm stacks the experts of these, if at all, without the scales of quantized ones.
_STACKED_WEIGHTS_ONLY = ("qwen3_moe", "qwen3_next", "qwen3_5_moe")
_EXPERT = re.compile(r"(.*\.mlp\.)experts\.(\d+)\.(gate|up|down)_proj\.(weight|scales|biases)")


class Weights:
    """The tensors of one checkpoint as mlx_lm names them.

    Attributes:
        outer: What stands before ``model.`` in those names.
    """

    def __init__(
        self, checkpoint: Checkpoint, family: Family, recipe: Recipe, model: Any, dtype: mx.Dtype
    ) -> None:
        """Take the index; no tensor is read.

        Args:
            checkpoint: The model.
            family: Its numbers.
            recipe: How it is built.
            model: mlx_lm's whole model, which knows how to name tensors.
            dtype: What floats become, where mlx_lm does not keep them as they are.
        """
        self._checkpoint = checkpoint
        self._family = family
        self._recipe = recipe
        self._model = model
        self._dtype = dtype
        self._keeps = getattr(model, "cast_predicate", lambda _: True)
        self.outer = recipe.outer
        blanks = _Blanks()
        self._blank: dict[str, mx.array] = {}
        for name in checkpoint.tensors:
            if name.startswith((family.prefix, "lm_head.")):
                for part, shape, kind in self._parts(name):
                    self._blank[part] = blanks.of(shape, kind)

    def expected(self, names: Iterable[str]) -> dict[str, mx.array]:
        """Return what ``read`` would, unread: arrays of the right shape and dtype."""
        own = [part for name in names for part, _, _ in self._parts(name)]
        return self._named({part: self._blank[part] for part in own})

    def read(self, names: Iterable[str]) -> dict[str, mx.array]:
        """Read tensors; return them named, laid out and cast for mlx_lm's modules, unevaluated.

        Args:
            names: All tensors of one layer, or of the two ends, as the checkpoint names them.
        """
        own: dict[str, mx.array] = {}
        for name in names:
            own |= self._read(name)
        return self._named(own)

    def _named(self, own: dict[str, mx.array]) -> dict[str, mx.array]:
        """Let mlx_lm name the tensors ``own``; only what came of them is returned."""
        index = self._prepared(self._blank | own)
        if self._recipe.is_sanitized:
            index = self._model.sanitize(index)
        mine = self._places(own)
        named = {}
        for name, array in index.items():
            if _place(name.removeprefix(self.outer)) in mine:
                named[name] = self._cast(name, array)
        return named

    def _cast(self, name: str, array: mx.array) -> mx.array:
        if mx.issubdtype(array.dtype, mx.floating):
            array = array.astype(self._dtype if self._keeps(name) else mx.float32)
        return mx.contiguous(array)

    def _places(self, own: Iterable[str]) -> frozenset[str]:
        return frozenset(_place(name) for name in own)

    def _renamed(self, name: str) -> str:
        """Return a name with the body at ``model.``, where mlx_lm's text models have it."""
        if name.startswith(self._family.prefix):
            return "model." + name.removeprefix(self._family.prefix)
        return name

    def _parts(self, name: str) -> list[tuple[str, tuple[int, ...], mx.Dtype]]:
        """Return name, shape and dtype of the arrays that one tensor comes in."""
        if name not in self._checkpoint.tensors:
            raise CheckpointError(
                f"mlx engine: {self._checkpoint.path}: expected the tensor {name}, got none; fetch "
                "the checkpoint again",
                reason="tensor_missing",
            )
        info, new = self._checkpoint.tensors[name], self._renamed(name)
        how = self._quantization(name)
        if how is None:
            return [(new, info.shape, mx.float32)]
        bits, group = how
        stem, (*outer, width) = new.removesuffix("weight"), info.shape
        few = (*outer, width // group)
        return [
            (new, (*outer, width * bits // 32), mx.uint32),
            (f"{stem}scales", few, mx.float32),
            (f"{stem}biases", few, mx.float32),
        ]

    def _read(self, name: str) -> dict[str, mx.array]:
        new = self._renamed(name)
        if self._quantization(name) is not None:
            stem = new.removesuffix("weight")
            parts = self._checkpoint.read_parts(name)
            return {stem + part: _array(bits) for part, bits in parts.items()}
        info = self._checkpoint.tensors[name]
        # Norms become float32 before mlx_lm adds 1 to them: the sum has more digits than the norm.
        if info.dtype not in _STORED or len(info.shape) == 1:
            return {new: mx.array(self._checkpoint.read(name))}
        return {new: _array(self._checkpoint.read(name, "stored"))}

    def _quantization(self, name: str) -> tuple[int, int] | None:
        """Return bits and group size of a matrix that stays in MLX's affine form."""
        if any(part in name for part in self._recipe.dense):
            return None
        return self._checkpoint.quantization(name)

    def _prepared(self, index: dict[str, mx.array]) -> dict[str, mx.array]:
        """Bring what mlx_lm's own loader does not take into a form that it does."""
        if self._family.model_type == "gpt_oss":
            return _split_experts(index)
        if self._recipe.module in _STACKED_WEIGHTS_ONLY:
            return _stack_experts(index, weights=self._recipe.module == "qwen3_5_moe")
        return index


class _Blanks:
    """Arrays that are never evaluated, one for each shape and dtype."""

    def __init__(self) -> None:
        self._made: dict[tuple[tuple[int, ...], str], mx.array] = {}

    def of(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        return self._made.setdefault((shape, str(dtype)), mx.zeros(shape, dtype))


def _array(bits: np.ndarray) -> mx.array:
    """Copy stored bits into an MLX array; BF16 comes as uint16, which keeps its bits."""
    array = mx.array(bits)
    return array.view(mx.bfloat16) if bits.dtype == np.uint16 else array


def _place(name: str) -> str:
    """Return which part of a model a tensor belongs to: a layer's number, or its own place."""
    body, _, rest = name.partition("layers.")
    return f"{body}layers.{rest.partition('.')[0]}" if rest else name.rpartition(".")[0]


def _split_experts(index: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """gpt_oss: one tensor ``[experts, in, out]`` has gate and up in turn; make them ``[out, in]``.

    mlx_lm's loader takes the packed form of these tensors only.
    """
    found: dict[str, mx.array] = {}
    for name, array in index.items():
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


def _stack_experts(index: Mapping[str, mx.array], *, weights: bool) -> dict[str, mx.array]:
    """Stack what belongs to single experts and mlx_lm's loader does not stack.

    Args:
        index: Every tensor.
        weights: Whether the loader leaves the weights too, and not only scales and biases.
    """
    found: dict[str, mx.array] = {}
    stacks: dict[str, dict[int, mx.array]] = {}
    for name, array in index.items():
        match = _EXPERT.fullmatch(name)
        if match is None or (match[4] == "weight" and not weights):
            found[name] = array
        else:
            stack = stacks.setdefault(f"{match[1]}switch_mlp.{match[3]}_proj.{match[4]}", {})
            stack[int(match[2])] = array
    for name, stack in stacks.items():
        found[name] = mx.stack([stack[expert] for expert in sorted(stack)])
    return found
