"""How a stream's tokens are drawn, as a value that cannot be out of range.

The drawing itself is done by `sampler`.
"""

from __future__ import annotations

import dataclasses
import math

from stagelink.errors import ConfigError

_SEED_END = 1 << 64


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: 0 is greedy (the lowest id of equal best logits); above 0 divides the logits.
        top_k: Keep the ``top_k`` best tokens; 0 keeps all.
        top_p: Keep the fewest best tokens whose probabilities sum to ``top_p``; 1 keeps all.
        min_p: Drop tokens less likely than ``min_p`` times the best one; 0 keeps all.
        seed: 64-bit number that fixes every draw.

    Raises:
        ConfigError: reason ``sampling`` for a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def as_json(self) -> dict[str, float]:
        """Return the fields as plain values; the seed repeats the answer."""
        return dataclasses.asdict(self)

    def __post_init__(self) -> None:
        """Refuse values outside their range, so that drawing never has to."""
        _demand(
            math.isfinite(self.temperature) and self.temperature >= 0,
            f"temperature is {self.temperature}: expected 0 or more",
        )
        _demand(self.top_k >= 0, f"top-k is {self.top_k}: expected 0 (off) or more")
        _demand(0 < self.top_p <= 1, f"top-p is {self.top_p}: expected above 0, at most 1")
        _demand(0 <= self.min_p <= 1, f"min-p is {self.min_p}: expected 0 to 1")
        _demand(0 <= self.seed < _SEED_END, f"seed is {self.seed}: expected 0 to 2**64 - 1")


def _demand(holds: bool, text: str) -> None:
    if not holds:
        raise ConfigError(text, reason="sampling")
