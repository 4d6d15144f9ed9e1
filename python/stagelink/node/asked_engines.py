"""Asks every installed engine whether it can run a model, as a stage does before it loads.

It loads no weights; an engine's constructor reads metadata only and says no by name.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from stagelink.engine import EngineSettings
from stagelink.engine_registry import engine_names, find_engine
from stagelink.errors import StagelinkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.engine import Checkpoint, Family

_CONTEXT = 256


def ask_engines(checkpoint: Checkpoint, family: Family) -> dict[str, str | None]:
    """Return why each installed engine refuses the whole model, ``None`` where it takes it."""
    settings = EngineSettings(context=min(_CONTEXT, family.context))
    return {name: _refusal(name, checkpoint, family, settings) for name in engine_names()}


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
