"""Asks every installed engine whether it can run a model, as a stage does before it loads.

It loads no weights; an engine's constructor reads metadata only and says no by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.engine import EngineSettings
from stagelink.engine_registry import engine_names, find_engine
from stagelink.errors import StagelinkError

if TYPE_CHECKING:
    from stagelink.engine import Checkpoint, Family

_CONTEXT = 256


def ask_engines(checkpoint: Checkpoint, family: Family) -> dict[str, str | None]:
    """Return why each installed engine refuses the whole model, ``None`` where it takes it."""
    settings = EngineSettings(context=min(_CONTEXT, family.context))
    return {name: _refusal(name, checkpoint, family, settings) for name in engine_names()}


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
