"""Reads how a config turns positions into angles: theta and the scaling of its frequencies.

It computes no angle; that is the engine's work.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from stagelink.checkpoint.fields import Fields
from stagelink.checkpoint.limits import CONTEXT_MAX, WIDTH_MAX

KINDS = ("default", "linear", "llama3")
WITH_YARN = (*KINDS, "yarn")
_REASON = "rope_scaling"
_YARN_NUMBERS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor")
# Far beyond what a model has, and far from where a logarithm or a float32 has no value.
_YARN_MIN, _YARN_MAX = 1e-6, 1e6


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
            the frequency is ``(1 - blend) * f / factor + blend * f``. ``"yarn"`` (Peng et al.
            2023, arXiv 2309.00071) blends by the pair's number, along a ramp from the pair that
            turns ``beta_fast`` times within ``original_context`` to the one that turns
            ``beta_slow`` times, and multiplies cosine and sine by `magnitude`.
        factor: Divisor of the frequencies; 1 for ``"default"``.
        low_freq_factor: Turns below which a wave is long; ``"llama3"`` only.
        high_freq_factor: Turns above which a wave is short; ``"llama3"`` only.
        original_context: Positions of the first training; ``"llama3"`` and ``"yarn"``, else 0.
        beta_fast: Turns from which a wave keeps its frequency; ``None`` means 32. This and what
            follows is ``"yarn"`` only, and ``None`` where the config says nothing.
        beta_slow: Turns up to which a wave is divided by ``factor``; ``None`` means 1.
        mscale: Weight of the magnitude; read only where ``mscale_all_dim`` is said too.
        mscale_all_dim: Weight of what the magnitude is divided by.
        attention_factor: The magnitude itself.
        truncate: Whether the ends of the ramp are whole pairs; ``None`` means yes.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool | None = None

    @property
    def magnitude(self) -> float:
        """What cosine and sine are multiplied by; source: section 3.4 of YaRN, as transformers."""
        if self.kind != "yarn" or self.attention_factor is not None:
            return self.attention_factor or 1.0
        if self.mscale is None or self.mscale_all_dim is None:
            return self._growth(1.0)
        return self._growth(self.mscale) / self._growth(self.mscale_all_dim)

    def parameters(self) -> dict[str, Any]:
        """Return ``rope_parameters`` as transformers 5 writes them."""
        found: dict[str, Any] = {"rope_type": self.kind, "rope_theta": self.theta}
        if self.kind != "default":
            found["factor"] = self.factor
        if self.kind in ("llama3", "yarn"):
            found["original_max_position_embeddings"] = self.original_context
        if self.kind == "llama3":
            found["low_freq_factor"] = self.low_freq_factor
            found["high_freq_factor"] = self.high_freq_factor
        said = {key: getattr(self, key) for key in (*_YARN_NUMBERS, "truncate")}
        return found | {key: value for key, value in said.items() if value is not None}

    def _growth(self, weight: float) -> float:
        """Return how much longer heads get by a stretch of ``factor``."""
        return 1.0 if self.factor <= 1.0 else 0.1 * weight * math.log(self.factor) + 1.0


def take_rope(fields: Fields, default_theta: float | None, context: int) -> Rope:
    """Take the rotary settings of a family that turns whole heads, with one of ``WITH_YARN``.

    ``context`` is `take_rope_parameters`'.

    Raises:
        CheckpointError: ``rope_scaling`` for a kind or number that is not done, or
            ``config_field``.
    """
    found = take_rope_parameters(fields, default_theta, WITH_YARN, context=context)
    return Rope(
        theta=found["rope_theta"],
        kind=found["rope_type"],
        factor=found.get("factor", 1.0),
        low_freq_factor=found.get("low_freq_factor", 1.0),
        high_freq_factor=found.get("high_freq_factor", 1.0),
        original_context=found.get("original_max_position_embeddings", 0),
        truncate=found.get("truncate"),
        **{key: found.get(key) for key in _YARN_NUMBERS},
    )


def take_rope_parameters(
    fields: Fields,
    default_theta: float | None,
    kinds: tuple[str, ...] = KINDS,
    *,
    partial: float | None = None,
    context: int = 0,
) -> dict[str, Any]:
    """Take ``rope_theta``, ``rope_scaling`` and ``rope_parameters`` as transformers 5 writes them.

    Older configs keep theta at the top and the scaling in ``rope_scaling``; transformers 5 keeps
    both in ``rope_parameters``. Where a fact stands twice, both must say the same.

    Args:
        fields: The config.
        default_theta: What is meant where no theta is said, or ``None`` to refuse that.
        kinds: Scalings that the family's formulas have.
        partial: The share of a head that is turned where none is said; ``None``: always the whole.
        context: The config's ``max_position_embeddings``, which transformers takes for the
            original context of a YaRN that says none; 0 to refuse that.

    Returns:
        ``rope_type``, ``rope_theta``, the scaling's own numbers, and ``partial_rotary_factor``
        where the family has one.

    Raises:
        CheckpointError: ``rope_scaling`` or ``config_field``.
    """
    top = fields.number("rope_theta") if fields.has("rope_theta") else None
    share = None
    if partial is not None and fields.has("partial_rotary_factor"):
        share = fields.number("partial_rotary_factor")
    places = [key for key in ("rope_parameters", "rope_scaling") if fields.has(key)]
    found: dict[str, Any] = {"rope_type": "default"}
    theta = top
    whole = partial is None
    for at, key in enumerate(places):
        one = parse_rope(fields, key, fields.raw(key), kinds, partial=not whole, context=context)
        own_theta, own_share = one.pop("rope_theta", None), one.pop("partial_rotary_factor", None)
        if theta is not None and own_theta not in (None, theta):
            raise fields.refusal(f"{key}.rope_theta", f"{theta}, as rope_theta says", own_theta)
        if share is not None and own_share not in (None, share):
            raise fields.refusal(f"{key}.partial_rotary_factor", str(share), own_share)
        if at and one != found:
            raise fields.refusal(key, f"the same as {places[0]}", one["rope_type"], reason=_REASON)
        theta = own_theta if own_theta is not None else theta
        share = own_share if own_share is not None else share
        found = one
    theta = theta if theta is not None else default_theta
    if theta is None:
        raise fields.refusal("rope_theta", "a number", None)
    if found["rope_type"] == "yarn" and theta == 1.0:
        raise fields.refusal("rope_theta", "another theta than 1 with yarn", theta, reason=_REASON)
    found["rope_theta"] = theta
    if partial is not None:
        found["partial_rotary_factor"] = share if share is not None else partial
    return found


def parse_rope(
    fields: Fields,
    key: str,
    value: object,
    kinds: tuple[str, ...],
    *,
    partial: bool,
    context: int = 0,
) -> dict[str, Any]:
    """Parse one object of rotary settings; theta and share are left out where it has none.

    ``context`` is `take_rope_parameters`'.
    """
    if not isinstance(value, dict):
        raise fields.refusal(key, "an object", value, reason=_REASON)
    inner = Fields(value, f"{fields.where}: {key}")
    found: dict[str, Any] = {}
    if inner.has("rope_theta"):
        found["rope_theta"] = inner.number("rope_theta")
    found["rope_type"] = kind = _take_kind(inner, kinds, "rope_theta" in found, partial=partial)
    if partial and inner.has("partial_rotary_factor"):
        found["partial_rotary_factor"] = inner.number("partial_rotary_factor")
    inner.only("partial_rotary_factor", 1.0, 1)
    if kind == "default":
        inner.only("factor", 1.0, 1, reason=_REASON)
    found |= _numbers(inner, kind, context) | (_sections(inner) if partial else {})
    inner.finish(_REASON)
    if found.get("factor", 1.0) < 1.0:
        raise inner.refusal("factor", "factor >= 1", value, reason=_REASON)
    return found


def _sections(inner: Fields) -> dict[str, Any]:
    """Take which positions turn what; a text's three are equal, and that is plain RoPE."""
    found: dict[str, Any] = {}
    if inner.has("mrope_section"):
        section = inner.raw("mrope_section")
        right = isinstance(section, list) and len(section) == 3
        if not right or any(type(one) is not int or not 0 <= one <= WIDTH_MAX for one in section):
            raise inner.refusal("mrope_section", "three numbers", section, reason=_REASON)
        found["mrope_section"] = section
    if inner.has("mrope_interleaved"):
        found["mrope_interleaved"] = inner.flag("mrope_interleaved", default=False)
    return found


def _take_kind(inner: Fields, kinds: tuple[str, ...], has_theta: bool, *, partial: bool) -> str:
    kind = inner.raw("rope_type", None)
    older = inner.raw("type", None)
    if kind is not None and older is not None and kind != older:
        raise inner.refusal("type", f"{kind!r}, as rope_type says", older, reason=_REASON)
    kind = kind if kind is not None else older
    if kind is None and has_theta and not inner.has("factor"):
        kind = "default"
    # An older word for the sections beside it.
    kind = "default" if partial and kind == "mrope" else kind
    if not isinstance(kind, str) or kind not in kinds:
        raise inner.refusal("rope_type", " or ".join(kinds), kind, reason=_REASON)
    return kind


def _numbers(inner: Fields, kind: str, whole_context: int) -> dict[str, Any]:
    if kind == "default":
        return {}
    if kind == "linear":
        return {"factor": inner.number("factor")}
    meant = whole_context if kind == "yarn" and whole_context else None
    context = inner.count("original_max_position_embeddings", CONTEXT_MAX, meant)
    found: dict[str, Any] = {
        "factor": inner.number("factor"),
        "original_max_position_embeddings": context,
    }
    if kind == "yarn":
        found |= {key: inner.number(key) for key in _YARN_NUMBERS if inner.has(key)}
        for key in found.keys() - {"original_max_position_embeddings"}:
            if not _YARN_MIN <= found[key] <= _YARN_MAX:
                wanted = f"a number in {_YARN_MIN}..{_YARN_MAX}"
                raise inner.refusal(key, wanted, found[key], reason=_REASON)
        if inner.has("truncate"):
            found["truncate"] = inner.flag("truncate", default=True)
        return found
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if low >= high:
        raise inner.refusal("low_freq_factor", "below high_freq_factor", low, reason=_REASON)
    return found | {"low_freq_factor": low, "high_freq_factor": high}
