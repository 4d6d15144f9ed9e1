"""Makes loaded stages of one model for a test, and closes them all.

It knows no promise.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineError, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import random_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagelink.engine import Checkpoint, EngineSettings, StageEngine
    from stagelink_conformance.pipeline import Outcome

T = TypeVar("T")

# How far logits of the same positions may be apart between two compositions. Where the composition
# is the same the promise is equal bytes, and no tolerance is used. A recurrent layer has two
# formulas, one for single rows and one for blocks of rows, whose sums differ more.
_TOLERANCE = {"float32": 1e-4, "float16": 0.2, "bfloat16": 1.0}
_RECURRENT_FACTOR = 10
# Models with more cuts are cut in five places.
_CUTS_MAX = 11
_ROWS_NAMED = 8
_TWO_COMPOSITIONS = (
    "rows were divided in another way, which changes roundings alone: look at positions, masks, "
    "states and at what streams share (docs/exactness.md)"
)
_ADVICE = "the composition is the same, so nothing else may change bits (docs/exactness.md)"


class Stages:
    """One model and one engine class; every stage that it makes is closed with it.

    Attributes:
        model: Path of the checkpoint, or `smollm2`.
        settings: What every stage gets unless a test says otherwise.
        family: The model's numbers.
        tolerance: How far logits of two compositions may be apart.
        reference_tolerance: How far logits may be from an independent reference's.
    """

    def __init__(
        self, engine: Any, model: Path, settings: EngineSettings, tolerance: float | None = None
    ) -> None:
        """Read the model's metadata.

        ``tolerance`` replaces that of the row's dtype, for an engine that quantizes what it
        multiplies.
        """
        self.model = model
        self.engine = engine
        self._made: list[StageEngine] = []
        self.settings = settings
        opened = self.checkpoint()
        self.family = read_family(opened.config, tensors=opened.tensors)
        description = self.make(0, self.family.layers, lead=True).describe()
        self.reference_tolerance = _TOLERANCE[description.row_dtype]
        if "linear" in self.family.layer_kinds:
            self.reference_tolerance *= _RECURRENT_FACTOR
        if tolerance is not None:
            self.reference_tolerance = tolerance
        self.tolerance = 0.0 if description.batch_invariant else self.reference_tolerance

    def checkpoint(self, *, cache: bool = True) -> Checkpoint:
        """Open the model; without ``cache`` its tensors are those of the file, not a conversion."""
        return open_checkpoint(self.model, cache=cache)

    def make(self, first: int, end: int, *, lead: bool, **changes: object) -> StageEngine:
        """Make a stage that is not loaded; ``changes`` are fields of the settings."""
        return self.make_counted(first, end, lead=lead, cache=True, **changes)[0]

    def make_counted(
        self, first: int, end: int, *, lead: bool, cache: bool, **changes: object
    ) -> tuple[StageEngine, Checkpoint]:
        """Make a stage that is not loaded, and return the checkpoint that counts its reads too."""
        checkpoint = self.checkpoint(cache=cache)
        settings = dataclasses.replace(self.settings, **changes)  # type: ignore[arg-type]
        family = read_family(checkpoint.config, tensors=checkpoint.tensors)
        engine = self.engine(checkpoint, family, first, end, lead=lead, settings=settings)
        self._made.append(engine)
        return engine, checkpoint

    def load(self, first: int, end: int, *, lead: bool, **changes: object) -> StageEngine:
        """Make a loaded stage."""
        engine = self.make(first, end, lead=lead, **changes)
        engine.load()
        return engine

    def whole(self) -> Pipeline:
        """Make the whole model in one stage."""
        return self.split()

    def split(self, *cuts: int) -> Pipeline:
        """Make stages that meet at ``cuts``."""
        borders = (0, *cuts, self.family.layers)
        ranges = itertools.pairwise(borders)
        return Pipeline([self.load(first, end, lead=first == 0) for first, end in ranges])

    def halves(self) -> Pipeline:
        """Make two stages, or one where the model has one layer."""
        middle = self.middle()
        return self.split(middle) if middle else self.whole()

    def middle(self) -> int:
        """Return the cut next to the middle that the model allows, or 0 where it allows none."""
        half = self.family.layers // 2
        return min(self.family.allowed_cuts(), key=lambda at: abs(at - half), default=0)

    def cuts(self) -> list[int]:
        """Return the layers to cut at: every one that is allowed, or five of a model with many."""
        allowed = self.family.allowed_cuts()
        last = len(allowed) - 1
        if last < _CUTS_MAX:
            return list(allowed)
        return [allowed[at] for at in (0, last // 4, last // 2, 3 * last // 4, last)]

    def ids(self, seed: int, count: int) -> list[int]:
        """Draw token ids."""
        return random_ids(seed, count, self.family.vocab)

    def assert_close(self, got: Outcome, expected: Outcome) -> None:
        """Compare logits of the same positions that were computed in two compositions."""
        if self.tolerance == 0.0:
            assert_same_bits([got], [expected])
        else:
            assert_near(got.logits, expected.logits, self.tolerance)

    def close(self) -> None:
        """Close every stage that was made."""
        for engine in self._made:
            engine.close()


def keep(engine: StageEngine, stream: int, position: int) -> None:
    """Cut a stream back; skip the test where the engine's description says that it does not."""
    _do(engine.describe().keeps, "keep", lambda: engine.keep(stream, position))


def save(engine: StageEngine, stream: int) -> bytes:
    """Save a stream; skip the test where the engine's description says that it does not."""
    return _do(engine.describe().saves, "save", lambda: engine.save(stream))


def _do(is_done: bool, name: str, action: Callable[[], T]) -> T:
    """Do what is done; what is not must be refused by its code, and the test is skipped."""
    if is_done:
        try:
            return action()
        except NotImplementedError as error:
            message = (
                f"expected {name}, which the engine's description says is done, got {error!r}; "
                f"do it, or describe the engine with {name}s=False and raise unsupported_op"
            )
            raise AssertionError(message) from error
    with pytest.raises(EngineError) as caught:
        action()
    assert caught.value.reason == "unsupported_op"
    pytest.skip(f"the engine does no {name}")


def assert_same_bits(got: Sequence[Outcome], expected: Sequence[Outcome]) -> None:
    """Compare rounds byte for byte and name the first that differs."""
    assert len(got) == len(expected)
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        if not one.same_bits(other):
            rows = np.any(one.logits != other.logits, axis=1).nonzero()[0]
            worst = float(np.abs(one.logits - other.logits).max(initial=0.0))
            at = ", ".join(map(str, rows[:_ROWS_NAMED])) or "none"
            more = f" and {len(rows) - _ROWS_NAMED} more" if len(rows) > _ROWS_NAMED else ""
            raise AssertionError(
                f"expected equal bytes, got others in round {number} of {len(got)}: logits of rows "
                f"{at}{more} differ, by at most {worst:.3g}; {_ADVICE}"
            )


def assert_same_bytes(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Compare arrays of one shape byte for byte; ``what`` says which they are."""
    where = f"{got.dtype} {list(got.shape)} beside {expected.dtype} {list(expected.shape)}"
    if (got.dtype, got.shape) == (expected.dtype, expected.shape):
        one, other = (np.frombuffer(array.tobytes(), np.uint8) for array in (got, expected))
        differing = int(np.count_nonzero(one != other))
        if not differing:
            return
        where = f"{differing} of {one.size} that are others"
    raise AssertionError(f"expected equal bytes of {what}, got {where}; {_ADVICE}")


def assert_near(
    got: np.ndarray, expected: np.ndarray, tolerance: float, advice: str = _TWO_COMPOSITIONS
) -> None:
    """Compare logits ``[..., vocab]`` of the same positions, and name the first row too far off."""
    apart = np.abs(got - expected).reshape(-1, got.shape[-1]).max(axis=1)
    # A logit that is no number is not near to anything.
    far = np.flatnonzero(~(apart <= tolerance))
    if len(far):
        raise AssertionError(
            f"expected logits within {tolerance}, got {float(apart.max()):.3g} at most, in "
            f"{len(far)} of {len(apart)} rows, the first of them row {far[0]}; {advice}"
        )
