"""Families that mlx_lm has and this engine does not take, each with its reason, as data.

It decides nothing; ``arguments.py`` says it in the refusal.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["UNSERVED"]

UNSERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "afm7": "its last layers read the keys of an earlier one, which a cut would part from them",
        "baichuan_m1": "its keys and values are mixed with those of the row before",
        "iquestloopcoder": "every row runs through all layers twice, and a ring runs it once",
        "phi3small": "the places that mlx_lm's layers see depend on how a prompt is cut",
        "talkie": "every layer reads the embedded rows too, and a ring carries one row a position",
    }
)
