"""From what was measured to what it means: one finding a check, and the verdict.

It measures nothing; every number that it says was measured before.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stagelink.verify.figures import Closeness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.verify.evidence import Boundary, Evidence
    from stagelink.verify.limits import Limits


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one check came to.

    Attributes:
        check: Its name.
        passed: Whether it holds; ``None`` where it was measured but promises nothing here.
        text: One line for a person.
        faults: What is wrong, one line each, the first one first on the ring.
    """

    check: str
    passed: bool | None
    text: str
    faults: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self)


def judge(evidence: Evidence, limits: Limits, checks: Sequence[str]) -> list[Finding]:
    """Return a finding for every check that was asked for."""
    judges: dict[str, Callable[[Evidence, Limits], Finding]] = {
        "exact": _exact,
        "close": _close,
        "greedy": _greedy,
        "repeat": _repeat,
        "invariance": _invariance,
        "state": _state,
    }
    return [made(evidence, limits) for name, made in judges.items() if name in checks]


def is_off(one: Boundary, limits: Limits) -> bool:
    """A stage's own error is too large; what is no number is."""
    held = limits.for_stage(one.engine)
    return not (one.own.relative <= held.relative and one.own.usual <= held.usual)


def is_good(findings: Sequence[Finding]) -> bool:
    """No check failed."""
    return all(finding.passed is not False for finding in findings)


def _exact(evidence: Evidence, limits: Limits) -> Finding:  # noqa: ARG001 (one form for all)
    equal, positions = _counts(evidence.close)
    text = f"{equal} of {positions} rows of logits equal the reference byte for byte"
    if not evidence.is_same:
        why = "not required: the ring and the reference do not compute alike"
        return Finding("exact", None, f"{text} ({why})")
    faults = [
        f"{one.name}: {one.chained.rows - one.chained.equal} of {one.chained.rows} rows differ, "
        f"by at most {one.chained.difference:.3g}"
        for one in evidence.boundaries
        if one.chained is not None and one.chained.equal < one.chained.rows
    ]
    if not positions:
        return Finding("exact", None, "not measured: there is no reference")
    if equal < positions and not faults:
        faults = [f"head: {positions - equal} of {positions} rows of logits differ"]
    return Finding("exact", not faults, text, tuple(faults))


def _close(evidence: Evidence, limits: Limits) -> Finding:
    positions = sum(one.positions for one in evidence.close)
    if not positions:
        return Finding("close", None, "not measured: there is no reference")
    together = _together(evidence.close)
    faults = [_named(one, limits) for one in evidence.boundaries if is_off(one, limits)]
    faults += _over(together, limits, "end to end")
    text = (
        f"{positions} positions: KL mean {together.kl_mean:.2e}, most {together.kl_most:.2e}; "
        f"logits at most {together.difference:.2e} apart; top-1 {100 * together.top1:.2f} %"
    )
    return Finding("close", not faults, text, tuple(faults))


def _greedy(evidence: Evidence, limits: Limits) -> Finding:
    if not evidence.splits:
        return Finding("greedy", None, "not measured: there is no reference")
    apart = max((one.difference for one in evidence.close), default=limits.difference)
    tie = 2 * min(apart, limits.difference)
    faults, ties = [], 0
    for split in evidence.splits:
        if split.at is None:
            continue
        if split.at.gap <= tie:
            ties += 1
            continue
        faults.append(
            f"prompt {split.prompt}: token {split.at.position} of {split.tokens} is not the "
            f"reference's, whose own is {split.at.gap:.3g} above it (a tie would be {tie:.3g})"
        )
    equal = sum(split.at is None for split in evidence.splits)
    text = f"{equal} of {len(evidence.splits)} continuations are the reference's to the last token"
    if ties:
        text += f", {ties} leave it at a tie"
    return Finding("greedy", not faults, text, tuple(faults))


def _repeat(evidence: Evidence, limits: Limits) -> Finding:  # noqa: ARG001 (one form for all)
    equal, positions = _counts(evidence.repeats)
    text = f"{equal} of {positions} rows of logits equal when the same rounds run again"
    faults = [
        f"prompt {index}: {one.positions - one.equal} of {one.positions} rows differ"
        f"{_begins(evidence, f'prompt {index}')}"
        for index, one in enumerate(evidence.repeats)
        if one.equal < one.positions
    ]
    return Finding("repeat", not faults, text, tuple(faults))


def _invariance(evidence: Evidence, limits: Limits) -> Finding:
    faults, parts = [], []
    for name, one in evidence.compositions.items():
        parts.append(f"{name}: {one.equal} of {one.positions} rows equal, KL {one.kl_most:.1e}")
        if evidence.is_invariant and one.equal < one.positions:
            faults.append(f"{name}: {one.positions - one.equal} rows differ, and all stages "
                          f"promise bits that do not depend on it{_begins(evidence, name)}"
                          )  # fmt: skip
        else:
            faults += _over(one, _other_composition(limits), name)
    return Finding("invariance", not faults, "; ".join(parts), tuple(faults))


def _state(evidence: Evidence, limits: Limits) -> Finding:
    if not evidence.states:
        return Finding("state", None, "not measured: the first prompt is too short")
    faults, parts = [], []
    for name, pair in evidence.states.items():
        one = pair.logits
        parts.append(f"{name}: {one.equal} of {one.positions} rows equal, held to {pair.held_to}")
        if not pair.is_exact:
            faults += _over(one, _other_composition(limits), name)
            continue
        if one.equal < one.positions:
            faults.append(f"{name}: {one.positions - one.equal} rows differ from a stream that "
                          f"never drafted{_begins(evidence, name)}")  # fmt: skip
        if pair.unlike:
            # Later stages are handed other rows: the first one is where it begins.
            first, *later = pair.unlike
            also = f" (and so those of rank {', '.join(map(str, later))})" if later else ""
            faults.append(f"{name}: the state of rank {first}{also} keeps a trace of what was cut "
                          "off")  # fmt: skip
        if pair.unknown:
            parts.append(f"states of rank {', '.join(map(str, pair.unknown))} cannot be digested")
    return Finding("state", not faults, "; ".join(parts), tuple(faults))


def _named(one: Boundary, limits: Limits) -> str:
    held = limits.for_stage(one.engine)
    is_rare = one.own.usual <= held.usual
    which, got, most = ("largest", one.own.relative, held.relative) if is_rare else (
        "usual", one.own.usual, held.usual)  # fmt: skip
    return (
        f"{one.name}: {which} relative error {got:.1e} given the same input, expected at most "
        f"{most:.0e}"
    )


def _begins(evidence: Evidence, name: str) -> str:
    """Say where two runs of the same part; the boundary's name where a reference gave it one."""
    rank = evidence.begins.get(name)
    if rank is None:
        return "; the rows of all stages are equal, so it is the head's"
    names = [one.name for one in evidence.boundaries if one.rank == rank and not one.is_head]
    return f"; first at {names[0] if names else f'rank {rank}'}"


def _over(one: Closeness, limits: Limits, what: str) -> list[str]:
    """Say which limits a comparison is over."""
    found = []
    if not one.difference <= limits.difference:
        found.append(f"logits {one.difference:.2e} apart, at most {limits.difference:.0e}")
    if not one.kl_mean <= limits.kl_mean:
        found.append(f"mean KL {one.kl_mean:.2e}, at most {limits.kl_mean:.0e}")
    if not one.kl_most <= limits.kl_most:
        found.append(f"KL {one.kl_most:.2e}, at most {limits.kl_most:.0e}")
    if one.top1 < limits.top1:
        found.append(f"top-1 {100 * one.top1:.2f} %, at least {100 * limits.top1:.0f} %")
    return [f"{what}: expected {part.rpartition(', ')[2]}, got {part.rpartition(', ')[0]}"
            for part in found]  # fmt: skip


def _other_composition(limits: Limits) -> Limits:
    """Return limits for the same stage in another composition: the same kernels, other sums."""
    return dataclasses.replace(limits, kl_mean=10 * limits.kl_mean, kl_most=10 * limits.kl_most)


def _counts(found: Sequence[Closeness]) -> tuple[int, int]:
    return sum(one.equal for one in found), sum(one.positions for one in found)


def _together(found: Sequence[Closeness]) -> Closeness:
    """Return the figures of all prompts as those of one."""
    kl = tuple(value for one in found for value in one.kl)
    count = len(kl)
    return Closeness(
        positions=count,
        equal=sum(one.equal for one in found),
        difference=max(one.difference for one in found),
        kl_mean=sum(kl) / count,
        kl_most=max(kl),
        top1=sum(one.top1 * one.positions for one in found) / count,
        disagreements=(),
        kl=kl,
    )
