"""What the tests of single engines share: the tiny models' shapes, cuts, ids, and logits as rows.

It makes no stage and compares nothing.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import random_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from stagelink_conformance.pipeline import Outcome

LAYERS = 8
# Ninety-six rows pass the tiny models' window of 16 several times.
ROWS = 96
CUTS = ([4], [1, 2, 6], [3, 7])


def chain(make_stage: Callable[[int, int], Any], cuts: Sequence[int], layers: int) -> Pipeline:
    """Chain loaded stages that meet at ``cuts``."""
    borders = itertools.pairwise([0, *cuts, layers])
    return Pipeline([make_stage(first, end) for first, end in borders])


def token_ids(seed: int = 1, count: int = ROWS) -> list[int]:
    """Draw ids of the tiny vocabulary, without its end of text."""
    return random_ids(seed, count, 255)


def logits_of(outcomes: Sequence[Outcome]) -> npt.NDArray[np.float32]:
    """Return the logits of all rounds, one row after the other."""
    return np.concatenate([one.logits for one in outcomes])
