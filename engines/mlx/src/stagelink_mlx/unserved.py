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
        "bailing_hybrid": "mlx_lm and transformers mean two different models by this name",
        "gemma3n_text": "its rows are four streams wide, and its layers read token ids",
        "gemma4_text": "the layers of this one read token ids, and a ring carries rows",
        "iquestloopcoder": "every row runs through all layers twice, and a ring runs it once",
        "phi3small": "the places that mlx_lm's layers see depend on how a prompt is cut",
        "plamo2": "mlx_lm, which alone defines it, leaves its attention's window out",
        "rwkv7": "every layer reads the values of the first, and a ring carries one row a position",
    }
)
