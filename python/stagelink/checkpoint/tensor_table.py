"""Compares the tensors that a checkpoint has with those that its family needs.

It reads no tensor.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from stagelink.checkpoint.refusal import refuse, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.opened import TensorInfo

FLOATS = ("F32", "F16", "BF16")
GGUF_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")

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
        if info.dtype not in GGUF_TYPES:
            done = ", ".join(GGUF_TYPES)
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
