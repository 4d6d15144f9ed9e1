"""Rotary position embedding by a config's ``rope_parameters``, for the scalings of transformers 5.

It takes the place of mlx_lm's own choice, which leaves out some of what a config can say: several
of its attention modules know no scaling, and its YaRN always rounds the borders of the blend.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx import nn

from stagelink.engine import ConfigError
from stagelink_mlx.refusal import ADVICE, refuse_field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    Frequencies = npt.NDArray[np.float64]

__all__ = ["ScaledRope", "check_length", "make_rope", "softmax_factor", "turned_share"]


class ScaledRope(nn.Module):
    """Turns the first ``dims`` values of every head by frequencies of its own."""

    def __init__(
        self, frequencies: Frequencies, *, traditional: bool, factor: float, sign: float = 1.0
    ) -> None:
        """Take radians a position for each pair.

        Args:
            frequencies: ``[dims / 2]``; rounded to float32.
            traditional: Whether a pair is two neighbours; else value ``i`` and ``i + dims / 2``.
            factor: What the turned values are multiplied by.
            sign: -1 turns against the usual direction.
        """
        super().__init__()
        self.dims = 2 * len(frequencies)
        self.traditional = traditional
        self.factor = factor
        # The underscore keeps them out of the module's parameters.
        self._periods = mx.array(_periods(frequencies)) * sign

    @property
    def periods(self) -> mx.array:
        """Reciprocals of the frequencies, as MLX takes them; ``[dims / 2]``."""
        return self._periods

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        """Turn ``[batch, heads, rows, head_width]``, the first row being at ``offset``."""
        if self.factor != 1.0:
            turned = x[..., : self.dims] * mx.array(self.factor, x.dtype)
            x = mx.concatenate([turned, x[..., self.dims :]], axis=-1)
        return mx.fast.rope(
            x,
            self.dims,
            traditional=self.traditional,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._periods,
        )


def make_rope(
    parameters: Mapping[str, Any], dims: int, *, traditional: bool, is_turned_back: bool = False
) -> nn.Module:
    """Return the module for one layer's ``rope_parameters``.

    An angle is the position times a float32 frequency, so each last digit of a frequency is seen
    some thousands of positions on. They are rounded where transformers rounds them: the power, then
    its reciprocal. MLX's own RoPE makes its frequencies by an exponential, with other digits.

    Raises:
        ConfigError: ``rope_scaling`` for a scaling that has no formula here, ``config_field`` for a
            theta whose powers float32 does not hold.
    """
    kind = str(parameters.get("rope_type", "default"))
    formula = _FORMULAS.get(kind)
    if formula is None:
        known = ", ".join(_FORMULAS)
        raise ConfigError(
            f"mlx engine: rope_parameters.rope_type: expected {known}, got {kind!r}; {ADVICE}",
            reason="rope_scaling",
        )
    steps = (np.arange(0, dims, 2) / dims).astype(np.float32).astype(np.float64)
    theta = parameters["rope_theta"]
    if not 0.0 < theta <= float(np.finfo(np.float32).max):
        raise refuse_field("rope_theta", "a number above 0 that float32 holds", theta)
    powers = (float(theta) ** steps).astype(np.float32)
    plain = (np.float32(1.0) / powers).astype(np.float64)
    frequencies, factor = formula(plain, parameters)
    sign = -1.0 if is_turned_back else 1.0
    return ScaledRope(frequencies, traditional=traditional, factor=factor, sign=sign)


def turned_share(parameters: Mapping[str, Any]) -> float:
    """Return the share of a head that is turned, some of it perhaps by nothing."""
    if parameters.get("rope_type") == "proportional":
        return 1.0
    return float(parameters.get("partial_rotary_factor", 1.0))


def softmax_factor(parameters: Mapping[str, Any]) -> float:
    """Return what YaRN multiplies the scale of a softmax by (arXiv 2309.00071, 3.4)."""
    factor, whole = parameters.get("factor") or 1.0, parameters.get("mscale_all_dim") or 0.0
    if parameters.get("rope_type", "default") == "default":
        return 1.0
    return _magnitude(float(factor), float(whole)) ** 2


def check_length(parameters: Mapping[str, Any], plain: int | None, context: int) -> None:
    """Refuse a context in which a scaling would turn earlier positions otherwise than later ones.

    Args:
        parameters: Of the RoPE.
        plain: Positions that the family treats alike, where its config says a number.
        context: Positions that a stream may have.

    Raises:
        ConfigError: ``rope_scaling``.
    """
    is_long = parameters.get("rope_type") == "longrope"
    length = parameters["original_max_position_embeddings"] if is_long else plain
    if length is not None and context > length:
        raise ConfigError(
            f"mlx engine: rope_parameters: expected a context of at most {length}, up to which "
            f"the model treats all positions alike, got {context}; use --context {length}, or "
            f"{ADVICE}",
            reason="rope_scaling",
        )


def _periods(frequencies: Frequencies) -> npt.NDArray[np.float32]:
    """Return what MLX, which takes float32 reciprocals, makes these frequencies of.

    The reciprocal of a rounded reciprocal can miss by a digit, which one beside it does not. What
    stands still has an endless period.
    """
    wanted = frequencies.astype(np.float32)
    with np.errstate(divide="ignore"):
        nearest = (1.0 / wanted.astype(np.float64)).astype(np.float32)
    below, above = np.nextafter(nearest, np.float32(0)), np.nextafter(nearest, np.float32(np.inf))
    choices = np.stack([nearest, below, above])
    missed = np.abs(np.float32(1.0) / choices - wanted)
    found: npt.NDArray[np.float32] = choices[missed.argmin(axis=0), np.arange(len(wanted))]
    return found


def _unscaled(plain: Frequencies, _: Mapping[str, Any]) -> tuple[Frequencies, float]:
    return plain, 1.0


def _linear(plain: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    return plain / float(parameters["factor"]), 1.0


def _proportional(plain: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    """Keep the share of the pairs that turn fastest; the others stand still."""
    turned = int(float(parameters.get("partial_rotary_factor", 1.0)) * len(plain))
    stands = np.arange(len(plain)) >= turned
    return np.where(stands, 0.0, plain) / float(parameters.get("factor") or 1.0), 1.0


def _llama3(plain: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    """Divide the long waves by the factor, keep the short ones, and blend between."""
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    turns = float(parameters["original_max_position_embeddings"]) * plain / (2 * math.pi)
    # Llama 4 Scout has one border: nothing lies between, and what lies on it is a long wave.
    reach = high - low
    blend = np.clip((turns - low) / reach, 0.0, 1.0) if reach else (turns > low).astype(float)
    return plain * (blend + (1.0 - blend) / float(parameters["factor"])), 1.0


def _yarn(plain: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    """Blend by the pair's number between two borders (arXiv 2309.00071, 3.2 and 3.4)."""
    factor = float(parameters["factor"])
    pairs = len(plain)
    theta, context = float(parameters["rope_theta"]), parameters["original_max_position_embeddings"]

    def pair_of(turns: float) -> float:
        """Return the number of the pair that turns so often over the original context."""
        return pairs * math.log(context / (turns * 2 * math.pi)) / math.log(theta)

    low = pair_of(float(parameters.get("beta_fast") or 32))
    high = pair_of(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    # transformers' own guard against an empty range.
    high = low + 0.001 if high == low else high
    slowed = np.clip((np.arange(pairs) - low) / (high - low), 0.0, 1.0)
    return plain * (1.0 - slowed + slowed / factor), _yarn_factor(factor, parameters)


def _yarn_factor(factor: float, parameters: Mapping[str, Any]) -> float:
    """Return what the turned values are multiplied by."""
    said = parameters.get("attention_factor")
    if said is not None:
        return float(said)
    scale, whole = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if scale and whole:
        return _magnitude(factor, float(scale)) / _magnitude(factor, float(whole))
    return _magnitude(factor, 1.0)


def _longrope(plain: Frequencies, parameters: Mapping[str, Any]) -> tuple[Frequencies, float]:
    """Divide by the short factors: whoever asks holds no position behind the original length."""
    short = np.array(parameters["short_factor"], np.float64)
    if short.shape != plain.shape:
        raise ConfigError(
            f"mlx engine: rope_parameters.short_factor: expected {len(plain)} numbers, got "
            f"{short.size}; fetch the checkpoint's config.json again",
            reason="rope_scaling",
        )
    factor = float(parameters["factor"])
    length = float(parameters["original_max_position_embeddings"])
    said = parameters.get("attention_factor")
    if said is None:
        said = 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(length))
    return plain / short, float(said)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


_FORMULAS: dict[str, Callable[[Frequencies, Mapping[str, Any]], tuple[Frequencies, float]]] = {
    "default": _unscaled,
    "linear": _linear,
    "proportional": _proportional,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}
