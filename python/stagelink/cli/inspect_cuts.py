"""Which cuts of a model engines with rules of their own forbid: of all cuts, and of those planned.

It knows no rule; the engines are asked, each about its own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink.node.asked_engines import engine_cuts, nearest_cuts, range_refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stagelink.checkpoint.opened import Checkpoint
    from stagelink.placement.ranges import Ranges


@dataclasses.dataclass(frozen=True, slots=True)
class EngineCuts:
    """What engines with rules of their own say of a model's cuts, each by its name.

    Attributes:
        allowed: Where each cuts the model in two.
        forbidden: Where it does not, and why.
        refusals: For each planned stage, why it is refused by those that refuse it.
        warnings: The same for people, one line for each that forbids a planned cut or range.
    """

    allowed: dict[str, list[int]]
    forbidden: dict[str, dict[int, str]]
    refusals: list[dict[str, str]]
    warnings: list[str]


def read_engine_cuts(
    checkpoint: Checkpoint, layers: int, names: Iterable[str], ranges: Ranges
) -> EngineCuts:
    """Ask the engines ``names``, which take the whole model of so many layers, about its cuts."""
    allowed = engine_cuts(checkpoint, names)

    def refusals(*held: tuple[int, int]) -> list[dict[str, str]]:
        return [range_refusals(checkpoint, layers, allowed, one) for one in held]

    forbidden: dict[str, dict[int, str]] = {name: {} for name in allowed}
    # Where all are allowed nobody need be asked about each.
    for at in range(1, layers):
        if all(at in cuts for cuts in allowed.values()):
            continue
        behind, before = refusals((at, layers), (0, at))
        for name, why in (behind | before).items():
            forbidden[name][at] = why
    planned = refusals(*ranges)
    warnings = [
        line for name, cuts in allowed.items() for line in _warnings(name, cuts, ranges, planned)
    ]
    return EngineCuts(allowed, forbidden, planned, warnings)


def _warnings(
    name: str, allowed: Sequence[int], ranges: Ranges, planned: Sequence[Mapping[str, str]]
) -> list[str]:
    """Return a line for the planned cuts that an engine forbids, and one for each other range."""
    refused = [
        (held, refusals[name])
        for held, refusals in zip(ranges, planned, strict=True)
        if name in refusals
    ]
    bounds = sorted({at for held, _ in refused for at in held} & {first for first, _ in ranges[1:]})
    off = [at for at in bounds if at not in allowed]
    lines = [
        f"{name} refuses a stage of layers {first}-{end}: {why}"
        for (first, end), why in refused
        if first not in off and end not in off
    ]
    if not off:
        return lines
    near = [(at, " and ".join(map(str, nearest_cuts(at, allowed)))) for at in off]
    cuts = ", ".join(f"{at} (nearest allowed: {cut or 'none'})" for at, cut in near)
    why = next(why for held, why in refused if held[0] in off or held[1] in off)
    return [f"{name} forbids the cut before layer {cuts}: {why}", *lines]
