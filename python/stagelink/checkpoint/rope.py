"""Reads how a config turns positions into angles: theta and the scaling of its frequencies.

It computes no angle; that is the engine's work.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.fields import Fields
from stagelink.checkpoint.limits import CONTEXT_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = ("default", "linear", "llama3")
_REASON = "rope_scaling"


@dataclasses.dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding over the whole head.

    The plain frequency of pair ``i`` is ``theta ** (-2 i / head_width)``; pairs are
    ``(i, i + head_width / 2)``.

    Attributes:
        theta: Base of the frequencies.
        kind: ``"default"`` leaves them; ``"linear"`` divides them by ``factor``; ``"llama3"``
            divides the long waves by ``factor``, keeps the short ones and blends between: with
            ``turns = original_context / wavelength`` the blend is
            ``(turns - low_freq_factor) / (high_freq_factor - low_freq_factor)`` cut to 0..1, and
            the frequency is ``(1 - blend) * f / factor + blend * f``.
        factor: Divisor of the frequencies; 1 for ``"default"``.
        low_freq_factor: Turns below which a wave is long; ``"llama3"`` only.
        high_freq_factor: Turns above which a wave is short; ``"llama3"`` only.
        original_context: Positions of the first training; ``"llama3"`` only, else 0.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0


def take_rope(fields: Fields, default_theta: float | None) -> Rope:
    """Take ``rope_theta``, ``rope_scaling`` and ``rope_parameters`` out of a config.

    Older configs keep theta at the top and the scaling in ``rope_scaling``; transformers 5 keeps
    both in ``rope_parameters``. Where a fact stands twice, both must say the same.

    Raises:
        CheckpointError: ``rope_scaling`` for a kind or number that is not done, or
            ``config_field``.
    """
    top = fields.number("rope_theta") if fields.has("rope_theta") else None
    places = [key for key in ("rope_parameters", "rope_scaling") if fields.has(key)]
    parsed = {key: _parse(fields, key, fields.raw(key)) for key in places}
    theta = top
    rope = Rope(theta=0.0)
    for key, (own_theta, own_rope) in parsed.items():
        if theta is not None and own_theta not in (None, theta):
            raise fields.refusal(f"{key}.rope_theta", f"{theta}, as rope_theta says", own_theta)
        theta = own_theta if own_theta is not None else theta
        if rope not in (Rope(theta=0.0), own_rope):
            raise fields.refusal(key, f"the same as {places[0]}", own_rope.kind, reason=_REASON)
        rope = own_rope
    theta = theta if theta is not None else default_theta
    if theta is None:
        raise fields.refusal("rope_theta", "a number", None)
    return dataclasses.replace(rope, theta=theta)


def _parse(fields: Fields, key: str, value: object) -> tuple[float | None, Rope]:
    if not isinstance(value, dict):
        raise fields.refusal(key, "an object", value, reason=_REASON)
    inner = Fields(value, f"{fields.where}: {key}")
    theta = inner.number("rope_theta") if inner.has("rope_theta") else None
    kind = inner.raw("rope_type", None)
    older = inner.raw("type", None)
    if kind is not None and older is not None and kind != older:
        raise inner.refusal("type", f"{kind!r}, as rope_type says", older, reason=_REASON)
    kind = kind if kind is not None else older
    if kind is None and theta is not None and not inner.has("factor"):
        kind = "default"
    if kind not in KINDS:
        raise inner.refusal("rope_type", " or ".join(KINDS), kind, reason=_REASON)
    inner.only("partial_rotary_factor", 1.0, 1)
    if kind == "default":
        inner.only("factor", 1.0, 1, reason=_REASON)
    rope = Rope(0.0, kind, **_numbers(inner, kind))
    inner.finish(_REASON)
    if rope.low_freq_factor > rope.high_freq_factor or rope.factor < 1.0:
        raise inner.refusal("factor", "factor >= 1, low <= high", value, reason=_REASON)
    return theta, rope


def _numbers(inner: Fields, kind: str) -> Mapping[str, Any]:
    if kind == "default":
        return {}
    if kind == "linear":
        return {"factor": inner.number("factor")}
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if low >= high:
        raise inner.refusal("low_freq_factor", "below high_freq_factor", low, reason=_REASON)
    return {
        "factor": inner.number("factor"),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_context": inner.count("original_max_position_embeddings", CONTEXT_MAX),
    }
