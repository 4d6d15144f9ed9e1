"""A checkpoint's tensors under the names, shapes and layouts of mlx_lm's layers, part by part.

It runs nothing; how arrays are laid out is in ``layouts/usual.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from stagelink.engine import CheckpointError
from stagelink_mlx.configs.declared import laid_out
from stagelink_mlx.layouts.dense import DENSE_LAYOUTS
from stagelink_mlx.layouts.handed import HANDED_LAYOUTS
from stagelink_mlx.layouts.hybrid import HYBRID_LAYOUTS
from stagelink_mlx.layouts.usual import LAYOUTS
from stagelink_mlx.parts.token_inputs import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagelink.engine import Checkpoint, Family
    from stagelink_mlx.families.recipes import Recipe

    Columns = Callable[[str, tuple[int, ...]], tuple[int, int] | None]

__all__ = ["Weights"]

_NORM = "norm.weight"
# So much of a table is in memory beside what is held of it.
_BLOCK_BYTES = 64 << 20
_STORED = ("F32", "F16", "BF16")
# What the choice of experts adds to their scores.
_CORRECTIONS = ("e_score_correction_bias", "expert_bias")


class Weights:
    """The tensors of one checkpoint as mlx_lm names them.

    Attributes:
        outer: What stands before ``model.`` in those names.
        layers_at: What stands after that, before a layer's number.
        routers: The names of parameters that choose experts, which are float32 whatever a file or
            the rows are: transformers keeps most of them so, and the choice is computed so.
        split: What takes the own layers' part of a tensor that has parts for all layers.
        columns: What says which columns of a tensor are the own layers', where some are.
    """

    def __init__(
        self, checkpoint: Checkpoint, family: Family, recipe: Recipe, model: Any, dtype: mx.Dtype
    ) -> None:
        """Take the index; no tensor is read.

        Args:
            checkpoint: The model.
            family: Its numbers.
            recipe: How it is built.
            model: mlx_lm's whole model, which knows what stays in float32.
            dtype: What floats become, where mlx_lm does not keep them as they are.
        """
        self._checkpoint = checkpoint
        self._family = family
        self._recipe = recipe
        self._dtype = dtype
        self._keeps = getattr(model, "cast_predicate", lambda _: True)
        self.outer = recipe.outer
        self.layers_at = f"{recipe.body}.{recipe.layers}."
        self.routers: frozenset[str] = frozenset()
        self.split: Callable[[dict[str, mx.array]], dict[str, mx.array]] = dict
        self.columns: Columns = lambda _name, _shape: None
        found = str(getattr(family, "layers_at", f"{family.prefix}layers."))
        self._found, self._head = found, f"{recipe.head.rpartition('.')[2]}."
        every = {**LAYOUTS, **DENSE_LAYOUTS, **HANDED_LAYOUTS, **HYBRID_LAYOUTS}
        self._layout = every[recipe.layout]
        # Some families' last layers are counted from 0 again, under another name.
        self._tail = str(getattr(family, "tail_at", ""))
        self._tail_first = int(getattr(family, "tail_first", 0))
        part = recipe.bare_norms
        self._norms_lack_one = bool(part) and any(part in name for name in checkpoint.tensors)

    def expected(self, names: Iterable[str]) -> dict[str, mx.array]:
        """Return what ``read`` would, unread: arrays of the right shape and dtype."""
        parts = [part for name in names for part in self._parts(name)]
        return self._named({name: mx.zeros(shape, kind) for name, shape, kind in parts})

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
        """Lay out and name the tensors of one part."""
        with laid_out(list(own)):
            laid = self._layout(own, self._family.config)
        if self._norms_lack_one:
            laid = {name: one + 1 if _NORM in name else one for name, one in laid.items()}
        laid = self.split(laid)
        return {self.outer + name: self._cast(self.outer + name, one) for name, one in laid.items()}

    def _cast(self, name: str, array: mx.array) -> mx.array:
        if mx.issubdtype(array.dtype, mx.floating):
            is_float32 = (
                name in self.routers
                or name.endswith((*_CORRECTIONS, *self._recipe.floats))
                or not self._keeps(name)
            )
            array = array.astype(mx.float32 if is_float32 else self._dtype)
        return mx.contiguous(array)

    def _renamed(self, name: str) -> str:
        """Return a name with the body where mlx_lm has it, and the parts renamed."""
        # Files name the body as they like, or not at all: it is what the layers are in.
        body = self._found[: self._found.rstrip(".").rfind(".") + 1]
        if self._tail and name.startswith(self._tail):
            number, _, rest = name.removeprefix(self._tail).partition(".")
            name = f"{self.layers_at}{int(number) + self._tail_first}.{rest}"
        elif name.startswith(self._found):
            name = self.layers_at + name.removeprefix(self._found)
        elif name.startswith(body) and not name.startswith(self._head):
            name = f"{self._recipe.body}." + name.removeprefix(body)
        for old, new in self._recipe.renames:
            name = name.replace(old, new)
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
        columns = self.columns(name, info.shape)
        if columns is not None and info.dtype in _STORED:
            return {f"{new.removesuffix('weight')}{OWN}weight": self._read_columns(name, columns)}
        # Norms become float32 before mlx_lm adds 1 to them: the sum has more digits than the norm.
        if info.dtype not in _STORED or len(info.shape) == 1:
            return {new: mx.array(self._checkpoint.read(name))}
        return {new: _array(self._checkpoint.read(name, "stored"))}

    def _read_columns(self, name: str, columns: tuple[int, int]) -> mx.array:
        """Read some columns of a table, which may be the largest tensor by far, rows by rows."""
        info, (begin, end) = self._checkpoint.tensors[name], columns
        rows = info.shape[0]
        step = max(1, _BLOCK_BYTES * rows // info.nbytes)
        blocks = []
        for at in range(0, rows, step):
            block = self._checkpoint.read(name, "stored", rows=(at, min(at + step, rows)))
            # A copy, which does not hold the whole rows.
            blocks.append(block[:, begin:end].copy())
        return _array(np.concatenate(blocks))

    def _quantization(self, name: str) -> tuple[int, int] | None:
        """Return bits and group size of a matrix that stays in MLX's affine form."""
        if any(part in name for part in self._recipe.dense):
            return None
        if self.outer + self._renamed(name) in self.routers:
            return None
        return self._checkpoint.quantization(name)


def _array(bits: np.ndarray) -> mx.array:
    """Copy stored bits into an MLX array; BF16 comes as uint16, which keeps its bits."""
    array = mx.array(bits)
    return array.view(mx.bfloat16) if bits.dtype == np.uint16 else array
