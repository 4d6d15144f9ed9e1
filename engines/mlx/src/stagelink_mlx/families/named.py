"""Tells families apart that files call by one ``model_type``, by the name of their architecture.

It reads no other field.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.engine import Family

__all__ = ["meant_type"]

# transformers means the first of them by the type; mlx_lm the second.
_BY_ARCHITECTURE: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("bailing_hybrid", "BailingHybridForCausalLM"): "bailing_moe_v3",
        ("bailing_hybrid", "BailingMoeV3ForCausalLM"): "bailing_moe_v3",
    }
)


def meant_type(family: Family) -> str:
    """Return the type of the family that a config means."""
    names = family.config.get("architectures") or ()
    found = (_BY_ARCHITECTURE.get((family.model_type, str(name))) for name in names)
    return next((one for one in found if one is not None), family.model_type)
