"""How far apart is too far: limits by what the stages compute in, from measurements.

Where each number comes from is in docs/verify.md; a flag can set any of them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


# Kernels that quantize what they multiply: llama.cpp on a file of 4 bits.
_QUANTIZING = ("llamacpp", "llama.cpp")
_QUANTIZED_RELATIVE = 0.3


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The most that may be measured before a check fails.

    Attributes:
        difference: Of two logits.
        kl_mean: Mean divergence in nats.
        kl_most: The largest.
        top1: The least share of positions with the same best token.
        relative: Error of a stage's rows, given the same rows (`figures.Drift`).
    """

    difference: float
    kl_mean: float
    kl_most: float
    top1: float
    relative: float

    def relative_for(self, engine: str) -> float:
        """Return the limit of a stage's own error, by what computes there.

        A stage that quantizes must not hide an error of one that does not.
        """
        quantizes = any(name.startswith(_QUANTIZING) for name in engine.split(", "))
        return max(self.relative, _QUANTIZED_RELATIVE) if quantizes else self.relative

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)


_FLOAT32 = Limits(difference=2e-3, kl_mean=1e-8, kl_most=1e-7, top1=1.0, relative=1e-4)
_BFLOAT16 = Limits(difference=3.0, kl_mean=5e-3, kl_most=0.2, top1=0.90, relative=0.15)
_FLOAT16 = Limits(difference=0.5, kl_mean=1e-4, kl_most=1e-2, top1=0.98, relative=1e-2)
_QUANTIZED = Limits(difference=float("inf"), kl_mean=2e-2, kl_most=0.5, top1=0.90, relative=0.0)
_BY_DTYPE = {"float32": _FLOAT32, "bfloat16": _BFLOAT16, "float16": _FLOAT16}


def limits_for(
    dtypes: Sequence[str], backends: Sequence[str], references: Sequence[str] = ()
) -> Limits:
    """Return the widest of the limits that the stages and the reference call for.

    Args:
        dtypes: Row dtypes of the ring and of the reference.
        backends: What computes on each stage.
        references: What computes the reference, where an engine does.
    """
    found = [_BY_DTYPE[dtype] for dtype in dtypes]
    if any(backend.startswith(_QUANTIZING) for backend in (*backends, *references)):
        found.append(_QUANTIZED)
    widest = {
        field.name: max(getattr(one, field.name) for one in found)
        for field in dataclasses.fields(Limits)
    }
    if any(backend.startswith(_QUANTIZING) for backend in references):
        widest["relative"] = max(widest["relative"], _QUANTIZED_RELATIVE)
    return Limits(**{**widest, "top1": min(one.top1 for one in found)})
