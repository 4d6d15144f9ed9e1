"""How far two sets of logits, or of rows, are apart: divergences, differences, agreements.

It measures; what is too far is said by `limits` and `judge`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

# Rows of logits that are looked at together: float64 copies of a large vocabulary are large.
_PIECE_ROWS = 32
_DISAGREEMENTS_MAX = 32
_USUAL_SHARE = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class Disagreement:
    """A position where another token is the best one.

    Attributes:
        position: Counted over all positions that were compared.
        gap: How far the reference's best logit is above its logit of the other side's token.
    """

    position: int
    gap: float


@dataclasses.dataclass(frozen=True, slots=True)
class Closeness:
    """Logits against reference logits, position by position.

    Attributes:
        positions: How many were compared.
        equal: Of these, how many are equal byte for byte.
        difference: The largest difference of two logits.
        kl_mean: Mean Kullback-Leibler divergence, reference to ours, in nats and float64.
        kl_most: The largest.
        top1: Share of positions with the same best token.
        disagreements: The first few others.
        kl: By position.
    """

    positions: int
    equal: int
    difference: float
    kl_mean: float
    kl_most: float
    top1: float
    disagreements: tuple[Disagreement, ...]
    kl: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """Rows against reference rows.

    Attributes:
        rows: How many were compared.
        equal: Of these, how many are equal byte for byte.
        difference: The largest difference of two values.
        relative: The largest error of a row: mean difference over median size of its values. A few
            values of a residual row can be a thousand times the others; neither part is theirs.
        usual: The error that nine rows of ten stay under. Rounding may choose another expert for a
            few rows, whose errors are then as large as a fault's; a fault is in most rows.
    """

    rows: int
    equal: int
    difference: float
    relative: float
    usual: float

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)


def closeness(ours: Sequence[Floats], references: Sequence[Floats]) -> Closeness:
    """Compare logits ``[positions, vocab]``, given as arrays whose rows follow each other."""
    equal, best, agreed = 0, 0.0, 0
    kl: list[float] = []
    others: list[Disagreement] = []
    for own, reference in _pieces(ours, references):
        equal += _equal_rows(own, reference)
        wide, wanted = own.astype(np.float64), reference.astype(np.float64)
        best = max(best, _largest(_apart(wide, wanted)))
        tops, expected = wide.argmax(1), wanted.argmax(1)
        agreed += int((tops == expected).sum())
        for row in np.flatnonzero(tops != expected):
            gap = float(wanted[row, expected[row]] - wanted[row, tops[row]])
            others.append(Disagreement(len(kl) + int(row), gap))
        kl += _divergence(wanted, wide)
    count = len(kl)
    return Closeness(
        positions=count,
        equal=equal,
        difference=best,
        kl_mean=sum(kl) / count if count else 0.0,
        kl_most=max(kl, default=0.0),
        top1=agreed / count if count else 1.0,
        disagreements=tuple(others[:_DISAGREEMENTS_MAX]),
        kl=tuple(kl),
    )


def drift(ours: Sequence[Floats], references: Sequence[Floats]) -> Drift:
    """Compare rows ``[rows, values]``, given as arrays whose rows follow each other."""
    equal, best = 0, 0.0
    errors: list[npt.NDArray[np.float64]] = [np.zeros(0)]
    for own, reference in _pieces(ours, references):
        equal += _equal_rows(own, reference)
        apart = _apart(own.astype(np.float64), reference.astype(np.float64))
        best = max(best, _largest(apart))
        size = np.maximum(np.median(np.abs(reference), 1).astype(np.float64), 1e-12)
        errors.append(np.mean(apart, 1) / size)
    found = np.sort(np.concatenate(errors))
    # What is no number is sorted to the end.
    usual = found[: int(np.ceil(_USUAL_SHARE * len(found)))]
    return Drift(len(found), equal, best, _largest(found), _largest(usual))


def first_split(tokens: Sequence[int], reference: Floats) -> Disagreement | None:
    """Return the first token that the reference would not have drawn; ``None`` where none is.

    Args:
        tokens: What was drawn, one token a row of ``reference``.
        reference: Logits ``[tokens, vocab]`` after the same tokens.
    """
    for index, token in enumerate(tokens):
        best = int(reference[index].argmax())
        if best != token:
            return Disagreement(index, float(reference[index, best] - reference[index, token]))
    return None


def _pieces(ours: Sequence[Floats], references: Sequence[Floats]) -> list[tuple[Floats, Floats]]:
    found = []
    for own, reference in zip(ours, references, strict=True):
        if own.shape != reference.shape:
            message = f"compared are {own.shape} and {reference.shape}"
            raise AssertionError(message)
        for begin in range(0, len(own), _PIECE_ROWS):
            end = begin + _PIECE_ROWS
            found.append((own[begin:end], reference[begin:end]))
    return found


def _equal_rows(own: Floats, reference: Floats) -> int:
    """Count equal bytes: two zeros of unlike sign differ, two equal not-a-numbers do not."""
    same = np.ascontiguousarray(own).view(np.uint32) == np.ascontiguousarray(reference).view(
        np.uint32
    )
    return int(same.all(1).sum())


def _apart(
    own: npt.NDArray[np.float64], reference: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the sizes of the differences; two infinities differ by what is no number."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: npt.NDArray[np.float64] = np.abs(own - reference)
    return found


def _largest(values: npt.NDArray[np.float64]) -> float:
    """Return the largest size; infinite where a value is no number, so that no limit passes it."""
    most = float(np.abs(values).max(initial=0.0))
    return most if np.isfinite(most) else float("inf")


def _divergence(reference: npt.NDArray[np.float64], own: npt.NDArray[np.float64]) -> list[float]:
    """KL(reference, own) by row. In float32 it would have a floor of 1e-6 and negative means."""
    # What is no number is a finding, not a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        wanted, got = _log_softmax(reference), _log_softmax(own)
        found = (np.exp(wanted) * (wanted - got)).sum(1)
    return [float(one) if np.isfinite(one) else float("inf") for one in found]


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(1, keepdims=True)
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return found
