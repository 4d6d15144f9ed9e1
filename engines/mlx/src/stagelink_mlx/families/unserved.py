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
        "afm7": "its last layers read the keys of an earlier one, which a cut would part from them",
        "bailing_hybrid": "mlx_lm and transformers mean two different models by this name",
        "gemma3n_text": "its rows are four streams wide, and its layers read token ids",
        "gemma4_text": "the layers of this one read token ids, and a ring carries rows",
        "hunyuan": "every second layer reads the keys of the one before, and a cut may part them",
        "iquestloopcoder": "every row runs through all layers twice, and a ring runs it once",
        "longcat_flash": "each layer attends twice, and this engine keeps one state a layer",
        "longcat_flash_ngram": "each layer attends twice, and this engine keeps one state a layer",
        "muse_spark_text": "mlx_lm computes its layers in bfloat16 alone, whatever the rows are",
        "phi-msft": "mlx_lm reads no size of its config, and takes the first model's for all",
        "plamo2": "mlx_lm, which alone defines it, leaves its attention's window out",
        "rwkv7": "every layer reads the values of the first, and a ring carries one row a position",
    }
)
