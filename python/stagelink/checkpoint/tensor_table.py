"""Compares the tensors that a checkpoint has with those that its family needs.

It reads no tensor.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from stagelink.checkpoint.gguf_walk import TENSOR_TYPES
from stagelink.checkpoint.refusal import refuse, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.opened import TensorInfo

FLOATS = ("F32", "F16", "BF16")
_GGUF_TYPES = frozenset(name for name, _, _ in TENSOR_TYPES.values())
# FP8 is read only together with the factors of its blocks, and is called so then.
_PACKED = re.compile(r"AFFINE[234568]_\d{2,3}|MXFP4|FP8_BLOCK")

# Frequencies that old exports stored; every engine computes them from the config.
_COMPUTED = re.compile(r"model\.(layers\.\d{1,4}\.self_attn\.)?rotary_emb\.inv_freq")
_AGAIN = "fetch or export the checkpoint again"


def check_table(
    needed: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, TensorInfo],
    where: str,
    *,
    optional: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> None:
    """Refuse a table that lacks, misshapes or adds a tensor; all of ``optional`` or none is there.

    Raises:
        CheckpointError: ``tensor_missing``, ``tensor_shape``, ``tensor_unknown``, ``quantization``.
    """
    if any(name in tensors for name in optional):
        needed = {**needed, **optional}
    for name, shape in needed.items():
        at = f"{where}: {name}"
        info = tensors.get(name)
        if info is None:
            raise refuse("tensor_missing", at, expected="this tensor", got="none", advice=_AGAIN)
        if info.shape != shape:
            got = f"shape {list(info.shape)}"
            raise refuse(
                "tensor_shape", at, expected=f"shape {list(shape)}", got=got, advice=_AGAIN
            )
        if info.dtype not in _GGUF_TYPES and not _PACKED.fullmatch(info.dtype):
            done = ", ".join(FLOATS) + ", MLX affine, FP8 blocks, or a type of GGUF"
            advice = "use a checkpoint in one of these"
            raise refuse("quantization", at, expected=done, got=shown(info.dtype), advice=advice)
    for name in tensors:
        if name not in needed and not _COMPUTED.fullmatch(name):
            at = f"{where}: {shown(name)}"
            raise refuse(
                "tensor_unknown",
                at,
                expected="only tensors that the family has",
                got=f"shape {list(tensors[name].shape)}",
                advice="use a checkpoint of a supported family, without adapters or extra heads",
            )
