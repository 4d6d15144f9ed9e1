"""Finds out which installed engines can run a model: by table, or by asking as a stage does.

It loads no weights; an engine's constructor reads metadata only and says no by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from stagelink.engine import EngineSettings
from stagelink.engine_registry import check_engine, engine_names, find_engine
from stagelink.errors import StagelinkError
from stagelink.node.engine_families import table_takes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stagelink.engine import Checkpoint, Family

_CONTEXT = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """What is known of the installed engines.

    Attributes:
        refusals: Why each refuses the whole model, ``None`` where it takes it.
        by_table: Engines that were not asked: what is said of them is what their families say.
    """

    refusals: dict[str, str | None]
    by_table: list[str]


def ask_engines(checkpoint: Checkpoint, family: Family, *, every: bool = False) -> Answers:
    """Say which engines take a model; with ``every``, ask those too that are slow to import."""
    settings = EngineSettings(context=min(_CONTEXT, family.context))
    answers = Answers({}, [])
    for name in engine_names():
        told = None if every else table_takes(name, family)
        if told is None:
            answers.refusals[name] = _refusal(name, checkpoint, family, settings)
        else:
            answers.refusals[name] = _told(name, family, is_taken=told)
            answers.by_table.append(name)
    return answers


def engine_cuts(checkpoint: Checkpoint, names: Iterable[str]) -> dict[str, list[int]]:
    """Return where engines that have rules of their own can cut a model in two.

    Such an engine's class has ``allowed_cuts(checkpoint)``; the others cut where the family can be.
    """
    cuts = {}
    for name in names:
        with contextlib.suppress(StagelinkError):
            ruled = getattr(find_engine(name), "allowed_cuts", None)
            if ruled is not None:
                cuts[name] = list(ruled(checkpoint))
    return cuts


def common_cuts(checkpoint: Checkpoint, family: Family, names: Iterable[str]) -> tuple[int, ...]:
    """Return where the family can be cut, and so can those of the engines with rules of their own.

    As `engine_cuts` asks them, which imports them.
    """
    ruled = engine_cuts(checkpoint, names).values()
    return tuple(at for at in family.allowed_cuts() if all(at in own for own in ruled))


def range_refusals(
    checkpoint: Checkpoint, layers: int, cuts: Mapping[str, Sequence[int]], held: tuple[int, int]
) -> dict[str, str]:
    """Return why engines with rules of their own refuse a stage of layers ``held``, if they do.

    Such an engine's class may have ``range_refused(checkpoint, first, end)``, which returns why, or
    ``None``; of others a range is refused that begins or ends where the engine does not cut.

    Args:
        checkpoint: The model.
        layers: How many it has.
        cuts: What `engine_cuts` says of them.
        held: First layer and the one after the last.
    """
    found = {}
    for name, allowed in cuts.items():
        ruled = getattr(find_engine(name), "range_refused", None)
        why = _off_cuts(held, layers, allowed) if ruled is None else ruled(checkpoint, *held)
        if why is not None:
            found[name] = why
    return found


def nearest_cuts(at: int, allowed: Sequence[int]) -> list[int]:
    """Return the allowed cut before ``at`` and the one behind it, as far as there are such."""
    below = [one for one in allowed if one < at][-1:]
    return [*below, *[one for one in allowed if one > at][:1]]


def _off_cuts(held: tuple[int, int], layers: int, allowed: Sequence[int]) -> str | None:
    off = [at for at in held if 0 < at < layers and at not in allowed]
    if not off:
        return None
    near = " and ".join(map(str, nearest_cuts(off[0], allowed))) or "none"
    return f"expected a cut that the engine allows, got one at {off[0]}; nearest allowed: {near}"


def _told(name: str, family: Family, *, is_taken: bool) -> str | None:
    """Return the refusal of what is not installed, or not in the engine's table."""
    try:
        check_engine(name)
    except StagelinkError as error:
        return str(error)
    if is_taken:
        return None
    return f"{name} engine: expected a family that it has, got {family.model_type!r}"


def _refusal(
    name: str, checkpoint: Checkpoint, family: Family, settings: EngineSettings
) -> str | None:
    try:
        made = find_engine(name)(checkpoint, family, 0, family.layers, lead=True, settings=settings)
        made.close()
    except StagelinkError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - somebody else's constructor; said, not raised
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None
