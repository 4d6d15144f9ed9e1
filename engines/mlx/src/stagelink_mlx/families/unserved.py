"""Families that mlx_lm has and this engine does not take, each with its reason, as data.

It decides nothing; ``configs/arguments.py`` says it in the refusal.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["UNSERVED"]

UNSERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "iquestloopcoder": "every row runs through all layers twice, and a ring runs it once",
        "muse_spark_text": "mlx_lm computes its layers in bfloat16 alone, whatever the rows are",
    }
)
