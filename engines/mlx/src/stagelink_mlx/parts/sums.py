"""Long sums of float32 terms on a CPU, taken in short blocks: matrix products, and norms.

It reads no weights and decides nothing; ``layers.py`` says where it is used. A BLAS may add up the
terms of a product one after the other (MLX's reference BLAS does), or in runs of hundreds. One
term of a thousand then stands in the sum for all small terms behind it, and takes their last
digits. With a sum for each block, and then the sum of those, few terms ever meet it. The blocks of
a matrix lie as ``[inputs, outputs]``, which the reference BLAS multiplies twice as fast or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["use_short_sums"]

_BLOCK_TERMS = 64
# A width that has no divisor from here up to a block's stays in one piece.
_BLOCK_TERMS_MIN = 16
# So many values of single blocks at once: 16 MiB.
_VALUES_AT_ONCE = 1 << 22


def use_short_sums(module: nn.Module, *, tied: bool = False) -> None:
    """Replace what sums in ``module`` by modules that do it in blocks, with the same weights.

    Args:
        module: A layer, or the ends of a model, in float32; its weights may be unevaluated.
        tied: Whether the embedding is the head too; else it is only read, and stays.
    """

    def replace(leaf: nn.Module) -> nn.Module:
        if isinstance(leaf, nn.Embedding) and not tied:
            return leaf
        make = _SHORT.get((type(leaf).__module__.rpartition(".")[2], type(leaf).__name__))
        if make is None:
            return leaf
        # Evaluated before it is laid out anew, and let go before the next: one array of room.
        mx.eval(leaf.parameters())
        short = make(leaf)
        mx.eval(short.parameters())
        leaf.clear()
        return short

    leaves = tree_map(replace, module.leaf_modules(), is_leaf=nn.Module.is_module)
    module.update_modules(leaves)


class _Linear(nn.Module):
    """In the place of ``nn.Linear``."""

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.blocks = _blocks_of(dense["weight"])
        if "bias" in dense:
            self.bias = dense["bias"]

    def __call__(self, rows: mx.array) -> mx.array:
        out = _multiply(rows, self.blocks)
        return out + self.bias if "bias" in self else out


class _Embedding(nn.Module):
    """In the place of an ``nn.Embedding`` that is the head too: one table serves both."""

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.blocks = _blocks_of(dense["weight"])

    def __call__(self, ids: mx.array) -> mx.array:
        return mx.moveaxis(self.blocks[..., ids].flatten(0, 1), 0, -1)

    def as_linear(self, rows: mx.array) -> mx.array:
        """Return the logits of rows, as ``nn.Embedding`` does."""
        return _multiply(rows, self.blocks)


class _Experts(nn.Module):
    """In the place of mlx_lm's ``SwitchLinear``: one matrix an expert, chosen for each row."""

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.blocks = _blocks_of(dense["weight"])
        if "bias" in dense:
            self.bias = dense["bias"]

    def __call__(self, rows: mx.array, experts: mx.array, sorted_indices: bool = False) -> mx.array:
        """Return ``[..., 1, outputs]`` of rows ``[..., 1, inputs]`` for each of ``experts``.

        Every block of every expert is a matrix to choose. That experts come in ascending order
        gains nothing on a CPU.
        """
        del sorted_indices
        _, count, terms, _ = self.blocks.shape
        cut = mx.moveaxis(rows.reshape(*rows.shape[:-1], count, terms), -2, -3)
        chosen = experts[..., None] * count + mx.arange(count)
        parts = mx.gather_mm(cut, self.blocks.flatten(0, 1), rhs_indices=chosen)
        out = mx.sum(parts, axis=-3)
        return out + mx.expand_dims(self.bias[experts], -2) if "bias" in self else out


class _Heads(nn.Module):
    """In the place of mlx_lm's ``MultiLinear``: one matrix a head, used from either side."""

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.weight = dense["weight"]

    def __call__(self, rows: mx.array, transpose: bool = True) -> mx.array:
        """Return each head's rows times its matrix ``[outputs, inputs]``, turned by default."""
        weight = self.weight.swapaxes(-1, -2) if transpose else self.weight
        heads, inputs, outputs = weight.shape
        terms = _block_terms(inputs)
        cut = mx.moveaxis(rows.reshape(*rows.shape[:-1], -1, terms), -2, -3)
        return mx.sum(cut @ weight.reshape(heads, -1, terms, outputs), axis=-3)


class _Norm(nn.Module):
    """In the place of ``nn.RMSNorm`` (Zhang and Sennrich 2019)."""

    def __init__(self, dense: nn.Module, shift: float = 0.0) -> None:
        super().__init__()
        self.eps: float = dense.eps
        self.weight: mx.array = dense["weight"] + shift if shift else dense["weight"]

    def __call__(self, rows: mx.array) -> mx.array:
        width = rows.shape[-1]
        squares = mx.square(rows).reshape(*rows.shape[:-1], -1, _block_terms(width))
        total = mx.sum(mx.sum(squares, axis=-1), axis=-1, keepdims=True)
        normed: mx.array = rows / mx.sqrt(total / width + self.eps) * self.weight
        return normed


def _shifted_norm(dense: nn.Module) -> nn.Module:
    """Gemma's norms multiply by 1 + weight."""
    return _Norm(dense, 1.0)


# By file and name; mlx_lm's modules are not imported for it.
_SHORT: dict[tuple[str, str], Callable[[nn.Module], nn.Module]] = {
    ("linear", "Linear"): _Linear,
    ("embedding", "Embedding"): _Embedding,
    ("switch_layers", "SwitchLinear"): _Experts,
    ("mla", "MultiLinear"): _Heads,
    ("normalization", "RMSNorm"): _Norm,
    ("gear", "GearRMSNorm"): _shifted_norm,
    ("gemma", "RMSNorm"): _shifted_norm,
    ("gemma2", "RMSNorm"): _shifted_norm,
    ("gemma3_text", "RMSNorm"): _shifted_norm,
    ("minimax_m3_vl", "GemmaRMSNorm"): _shifted_norm,
    ("recurrent_gemma", "RMSNorm"): _shifted_norm,
}


def _blocks_of(weight: mx.array) -> mx.array:
    """Return ``[..., outputs, inputs]`` as ``[..., blocks, terms, outputs]``."""
    *outer, outputs, inputs = weight.shape
    cut = weight.reshape(*outer, outputs, -1, _block_terms(inputs))
    return mx.contiguous(mx.moveaxis(cut, -3, -1))


def _multiply(rows: mx.array, blocks: mx.array) -> mx.array:
    """Return ``[..., outputs]`` of rows ``[..., inputs]``; many rows take block after block."""
    count, terms, outputs = blocks.shape
    cut = rows.reshape(-1, count, terms).transpose(1, 0, 2)
    if cut.shape[1] * count * outputs <= _VALUES_AT_ONCE:
        total = mx.sum(cut @ blocks, axis=0)
    else:
        total = cut[0] @ blocks[0]
        for at in range(1, count):
            total = total + cut[at] @ blocks[at]
    return total.reshape(*rows.shape[:-1], outputs)


def _block_terms(width: int) -> int:
    """Return the largest divisor of a width that a block can have, or the width."""
    choices = range(_BLOCK_TERMS, _BLOCK_TERMS_MIN - 1, -1)
    return next((terms for terms in choices if width % terms == 0), width)
