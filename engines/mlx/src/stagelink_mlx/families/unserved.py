"""Families that mlx_lm has and this engine does not take, each with its reason, as data.

It decides nothing; ``configs/arguments.py`` says it in the refusal.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["UNSERVED"]

_COMPRESSED: Final = (
    "its layers read what earlier ones compressed and chose, and mix four streams by float32 "
    "shares that travel beside them"
)

UNSERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("deepseek_v41", "deepseek_v41_text"), _COMPRESSED),
        "muse_spark_text": "mlx_lm computes its layers in bfloat16 alone, whatever the rows are",
        "prism_hadamard_qwen35": "its matrices are rotated as a list of modules in its file says",
    }
)
