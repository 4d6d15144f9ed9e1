"""The angles of rotary positions: one table a stage, made at load.

It turns no heads (layers.py does) and reads no config (the family has the numbers).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import CheckpointError
from stagelink_numpy.memory import aligned_zeros

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagelink.engine import LlamaFamily, Rope
    from stagelink_numpy.memory import Floats

    Doubles = npt.NDArray[np.float64]


def rope_tables(family: LlamaFamily, positions: int) -> tuple[Floats, Floats]:
    """Return the cosine and the sine of every position and pair, ``[positions, head_width / 2]``.

    Both are times the scaling's magnitude, which is 1 but for YaRN. An angle is the float32 product
    of the position and a float32 frequency: the table then agrees with the float32 reference
    implementations also far from position 0.

    Raises:
        CheckpointError: The family names a scaling that this engine does not do.
    """
    frequencies = _frequencies(family).astype(np.float32)
    steps = np.arange(positions, dtype=np.float32)
    angles = (steps[:, None] * frequencies[None, :]).astype(np.float64)
    tables = aligned_zeros(positions, frequencies.size), aligned_zeros(positions, frequencies.size)
    magnitude = family.rope.magnitude
    tables[0][...] = np.cos(angles) * magnitude
    tables[1][...] = np.sin(angles) * magnitude
    return tables


def check_rope(family: LlamaFamily) -> None:
    """Refuse by name a rotary scaling that ``rope_tables`` has no formula for."""
    if family.rope.kind not in _SCALINGS:
        raise CheckpointError(
            f"numpy engine: expected a rope scaling of {', '.join(sorted(_SCALINGS))}, "
            f"got {family.rope.kind!r}; use another engine for this checkpoint",
            reason="rope_scaling",
        )


def _frequencies(family: LlamaFamily) -> Doubles:
    """Return the float64 frequencies ``[head_width / 2]`` after the family's scaling.

    Exponent, power and reciprocal are rounded to float32, as transformers and the other engines
    do: rounded once only, a third of the frequencies end in another digit, and an angle is off by
    that digit times the position.
    """
    check_rope(family)
    width = np.float32(family.head_width)
    pairs = np.arange(0, family.head_width, 2, dtype=np.float32) / width
    powers = np.power(float(family.rope.theta), pairs.astype(np.float64))
    plain = (np.float32(1.0) / powers.astype(np.float32)).astype(np.float64)
    return _SCALINGS[family.rope.kind](plain, family.rope)


def _unscaled(plain: Doubles, _rope: Rope) -> Doubles:
    """Return the frequencies as they are."""
    return plain


def _linear(plain: Doubles, rope: Rope) -> Doubles:
    """Stretch every position by ``factor`` (position interpolation, Chen et al. 2023)."""
    return plain / rope.factor


def _llama3(plain: Doubles, rope: Rope) -> Doubles:
    """Stretch long waves by ``factor``, leave short ones, blend between (Llama 3.1's rule)."""
    wavelength = 2.0 * math.pi / plain
    turns = rope.original_context / wavelength
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1.0 - blend) * plain / rope.factor + blend * plain


def _yarn(plain: Doubles, rope: Rope) -> Doubles:
    """Blend by the pair's number between two counts of turns (Peng et al. 2023, "YaRN", 3.2)."""
    pairs = plain.size

    def pair_of(turns: float) -> float:
        """Return the pair, as a real number, that turns so often within the original context."""
        return pairs * math.log(rope.original_context / (turns * math.tau)) / math.log(rope.theta)

    low = pair_of(32.0 if rope.beta_fast is None else rope.beta_fast)
    high = pair_of(1.0 if rope.beta_slow is None else rope.beta_slow)
    if rope.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    # An empty ramp is a step, as in transformers.
    span = high - low if high != low else 0.001
    slowed = np.clip((np.arange(pairs) - low) / span, 0.0, 1.0)
    stretched: Doubles = plain * (slowed / rope.factor + (1.0 - slowed))
    return stretched


_SCALINGS = {"default": _unscaled, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
