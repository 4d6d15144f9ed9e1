"""Layer ranges of all ranks: cut evenly, read from a flag, checked for gaps and overlaps.

It counts layers only; what a layer weighs and how fast a machine is are not looked at.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, TypeAlias

from stagelink.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Sequence

Ranges: TypeAlias = tuple[tuple[int, int], ...]

WORLD_MAX = 64
_RANGE = re.compile(r"([0-9]{1,6})(?:-|\.\.)([0-9]{1,6})")


def even_ranges(layers: int, world: int, allowed: Sequence[int] | None = None) -> Ranges:
    """Cut ``layers`` layers into ``world`` ranges whose sizes differ by at most one.

    What does not divide goes to the last ranks, because rank 0 also embeds and runs the head:
    30 layers on 3 ranks are 0-10, 10-20, 20-30; 32 are 0-10, 10-21, 21-32.

    Args:
        layers: Of the model.
        world: Ranks.
        allowed: The layers that the model can be cut before, ascending, where it is not all: each
            cut is then the nearest of them, of two the earlier.

    Raises:
        PlacementError: ``too_many_stages`` where a rank would hold no layer; ``world`` outside
            1 to 64.
    """
    if not 1 <= world <= WORLD_MAX:
        raise PlacementError(f"{world} stages asked for: expected 1 to {WORLD_MAX}", reason="world")
    if world > layers:
        most = layers if allowed is None else len(allowed) + 1
        raise PlacementError(
            f"{world} stages asked for, but the model has {layers} layers and every stage "
            f"needs at least one: use --stages {most}{' or less' if most > 1 else ''}",
            reason="too_many_stages",
        )
    small, extra = divmod(layers, world)
    sizes = [small + (rank >= world - extra) for rank in range(world)]
    ends = list(itertools.accumulate(sizes))
    if allowed is not None:
        ends = [*_nearest(ends[:-1], allowed), layers]
    return tuple(itertools.pairwise([0, *ends]))


def _nearest(wanted: Sequence[int], allowed: Sequence[int]) -> list[int]:
    """Return an allowed cut for each wanted one, ascending and as near as they go."""
    if len(wanted) > len(allowed):
        cuts = ", ".join(map(str, allowed))
        only = f"can only be cut before layers {cuts}" if allowed else "cannot be cut"
        most = f"{len(allowed) + 1} or less" if allowed else "1"
        raise PlacementError(
            f"{len(wanted) + 1} stages asked for, but the model {only}: use --stages {most}",
            reason="too_many_stages",
        )
    found: list[int] = []
    left = list(allowed)
    for index, at in enumerate(wanted):
        # One has to be left for each cut behind this.
        choices = left[: len(left) - (len(wanted) - index - 1)]
        found.append(min(choices, key=lambda one: abs(one - at)))
        left = [one for one in left if one > found[-1]]
    return found


def parse_ranges(text: str) -> Ranges:
    """Read ``"0-10,10-20,20-30"``: half-open ranges in rank order; ``0..10`` reads the same.

    Raises:
        ConfigError: reason ``layers_text`` where the text has another form.
    """
    matches = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    if not all(matches):
        raise ConfigError(
            f"--layers is {text[:80]!r}: expected half-open ranges in rank order such as "
            "0-10,10-20,20-30",
            reason="layers_text",
        )
    return tuple((int(match[1]), int(match[2])) for match in matches if match)


def check_ranges(ranges: Sequence[tuple[int, int]], layers: int) -> Ranges:
    """Return ``ranges`` where they cover layers ``0..layers`` exactly once, in rank order.

    Raises:
        PlacementError: ``range_empty``, ``range_gap``, ``range_overlap``, ``range_overrun`` or
            ``world``; ``rank`` is the one whose range breaks the rule, of two the later.
    """
    if not 1 <= len(ranges) <= WORLD_MAX:
        raise PlacementError(
            f"{len(ranges)} layer ranges given: expected 1 to {WORLD_MAX}", reason="world"
        )
    expected = 0
    for rank, (first, end) in enumerate(ranges):
        _check_one(rank, first, end, expected, layers)
        expected = end
    if expected != layers:
        raise _wrong(
            "range_gap",
            len(ranges) - 1,
            ranges[-1],
            f"layers {expected}-{layers} are held by no rank: the last range must end at {layers}",
        )
    return tuple((first, end) for first, end in ranges)


def format_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Write ranges as `parse_ranges` reads them."""
    return ",".join(f"{first}-{end}" for first, end in ranges)


def _check_one(rank: int, first: int, end: int, expected: int, layers: int) -> None:
    """Check one range against the end of the one before it."""
    held = (first, end)
    if first >= end:
        raise _wrong("range_empty", rank, held, "a range must hold at least one layer")
    if first > expected:
        gap = f"layers {expected}-{first} are held by no rank: it must start at {expected}"
        raise _wrong("range_gap", rank, held, gap)
    if first < expected:
        twice = f"layers {first}-{min(expected, end)} are held twice: it must start at {expected}"
        raise _wrong("range_overlap", rank, held, twice)
    if end > layers:
        raise _wrong("range_overrun", rank, held, f"the model has {layers} layers")


def _wrong(reason: str, rank: int, held: tuple[int, int], text: str) -> PlacementError:
    return PlacementError(
        f"rank {rank} (layers {held[0]}-{held[1]}): {text}", reason=reason, rank=rank
    )
