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
_QUANTIZED_USUAL = 0.3


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The most that may be measured before a check fails.

    Attributes:
        difference: Of two logits.
        kl_mean: Mean divergence in nats.
        kl_most: The largest.
        top1: The least share of positions with the same best token.
        relative: Largest error of a stage's rows, given the same rows (`figures.Drift`).
        usual: Error that nine of ten of these rows stay under.
        quantizing: Largest error of the rows of a stage that quantizes what it multiplies.
    """

    difference: float
    kl_mean: float
    kl_most: float
    top1: float
    relative: float
    usual: float
    quantizing: float = 0.3

    def for_stage(self, engine: str) -> Limits:
        """Return what a stage's own error is held against, by what computes there.

        A stage that quantizes must not hide an error of one that does not.
        """
        if not any(name.startswith(_QUANTIZING) for name in engine.split(", ")):
            return self
        return dataclasses.replace(
            self,
            relative=max(self.relative, self.quantizing),
            usual=max(self.usual, _QUANTIZED_USUAL),
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)


_BY_DTYPE = {
    "float32": Limits(
        difference=2e-3, kl_mean=1e-8, kl_most=1e-7, top1=1.0, relative=1e-4, usual=2e-5
    ),
    "float16": Limits(
        difference=0.5, kl_mean=1e-4, kl_most=2e-3, top1=0.97, relative=2e-2, usual=8e-3
    ),
    "bfloat16": Limits(
        difference=4.0, kl_mean=5e-3, kl_most=0.2, top1=0.85, relative=0.15, usual=6e-2
    ),
}
# A rounding below float32 may choose another expert for a row, which is then another row; later
# layers and the logits carry it on.
_ROUTED = {
    "float16": Limits(
        difference=3.0, kl_mean=8e-3, kl_most=0.3, top1=0.88, relative=0.6, usual=8e-3
    ),
    "bfloat16": Limits(
        difference=8.0, kl_mean=0.13, kl_most=1.6, top1=0.5, relative=1.8, usual=0.1
    ),
}
# And a recurrent state carries it on to every later row of the stream.
_RECURRENT = {
    "float16": dataclasses.replace(_ROUTED["float16"], usual=2.5e-2),
    "bfloat16": dataclasses.replace(_ROUTED["bfloat16"], relative=3.0, usual=0.4),
}
_QUANTIZED = Limits(
    difference=float("inf"), kl_mean=2e-2, kl_most=0.5, top1=0.90, relative=0.0, usual=0.0
)
# What was quantized to 8 bits may choose another expert too.
_QUANTIZED_ROUTED = dataclasses.replace(
    _QUANTIZED, kl_mean=3e-2, kl_most=1.0, top1=0.70, quantizing=1.8
)


def limits_for(
    dtypes: Sequence[str], backends: Sequence[str], references: Sequence[str] = (), *,
    is_routed: bool = False, is_recurrent: bool = False,
) -> Limits:  # fmt: skip
    """Return the widest of the limits that the stages and the reference call for.

    Args:
        dtypes: Row dtypes of the ring and of the reference.
        backends: What computes on each stage.
        references: What computes the reference, where an engine does.
        is_routed: Whether the model has experts that a router chooses.
        is_recurrent: Whether it has layers with a recurrent state.
    """
    found = [_of_dtype(dtype, is_routed, is_recurrent) for dtype in dtypes]
    if any(backend.startswith(_QUANTIZING) for backend in (*backends, *references)):
        found.append(_QUANTIZED_ROUTED if is_routed else _QUANTIZED)
    widest = {
        field.name: max(getattr(one, field.name) for one in found)
        for field in dataclasses.fields(Limits)
    }
    if any(backend.startswith(_QUANTIZING) for backend in references):
        widest["relative"] = max(widest["relative"], widest["quantizing"])
        widest["usual"] = max(widest["usual"], _QUANTIZED_USUAL)
    return Limits(**{**widest, "top1": min(one.top1 for one in found)})


def _of_dtype(dtype: str, is_routed: bool, is_recurrent: bool) -> Limits:
    plain = _BY_DTYPE[dtype]
    if is_recurrent:
        return _RECURRENT.get(dtype, plain)
    return _ROUTED.get(dtype, plain) if is_routed else plain
