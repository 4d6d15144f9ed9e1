r"""Turns one row of logits into a token id: greedy, or drawn with a seed.

It keeps no state and owns no generator: a draw depends on seed, stream and position only.

Order of the filters, each on what the one before left: temperature, top-k, top-p, min-p. Softmax
is in float64. A draw takes the first token, in ascending id, whose cumulative probability exceeds
the uniform number u: the top 53 bits of the first 8 bytes, read as a little-endian number, of
SHA-256(``b"stagelink/v1 draw\0"`` + seed, salt and position as little-endian u64), over 2**53. So a
seed gives the same tokens whatever else runs on the ring and wherever the model is cut, as long as
the logits have the same bits.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from stagelink.errors import EngineError

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagelink.request.sampling import Sampling

_DRAW_LABEL = b"stagelink/v1 draw\0"


def sample(logits: npt.NDArray[np.float32], sampling: Sampling, *, salt: int, position: int) -> int:
    """Return the token id for one row of logits ``[vocab]``.

    Args:
        logits: Float32 logits of the row; never written to.
        sampling: How to draw.
        salt: Tells apart streams that share a seed.
        position: Position that the drawn token will have in its stream.

    Raises:
        EngineError: reason ``logits`` where the best logit is not a finite number.
    """
    best = int(np.argmax(logits))
    if not math.isfinite(float(logits[best])):
        raise EngineError(
            f"expected finite logits, got {float(logits[best])} for token {best} "
            f"at position {position}",
            reason="logits",
        )
    if sampling.temperature == 0:
        return best
    weights = _weights(logits, sampling, best)
    cumulative = np.cumsum(weights)
    threshold = uniform(sampling.seed, salt, position) * cumulative[-1]
    drawn = int(np.searchsorted(cumulative, threshold, side="right"))
    # Rounding may carry the threshold to the very end; the last token with any weight is meant.
    return min(drawn, int(np.flatnonzero(weights)[-1]))


def uniform(seed: int, salt: int, position: int) -> float:
    """Return the number in [0, 1) that a seed, a stream and a position stand for."""
    counter = struct.pack("<QQQ", seed, salt, position)
    digest = hashlib.sha256(_DRAW_LABEL + counter).digest()
    return float(int.from_bytes(digest[:8], "little") >> 11) * 2.0**-53


def _weights(
    logits: npt.NDArray[np.float32], sampling: Sampling, best: int
) -> npt.NDArray[np.float64]:
    """Unnormalized probabilities ``[vocab]`` in float64, zero where a filter dropped the token."""
    scaled = (logits.astype(np.float64) - float(logits[best])) / sampling.temperature
    weights: npt.NDArray[np.float64] = np.exp(scaled)
    if 0 < sampling.top_k < weights.size:
        weights[_ranking(weights)[sampling.top_k :]] = 0.0
    if sampling.top_p < 1:
        ranking = _ranking(weights)
        before = np.cumsum(weights[ranking]) - weights[ranking]
        weights[ranking[before >= sampling.top_p * weights.sum()]] = 0.0
        weights[best] = 1.0
    if sampling.min_p > 0:
        weights[weights < sampling.min_p] = 0.0
    return weights


def _ranking(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """Ids from the likeliest to the least; equal ones by ascending id."""
    return np.argsort(-weights, kind="stable")
