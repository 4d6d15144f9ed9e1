"""Finds an installed engine by name.

It knows the one that comes with stagelink; all others announce themselves by the entry point
``stagelink.engines``. It makes no engine and imports only the one that is asked for.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.engine import StageEngine

GROUP = "stagelink.engines"
# Looked up directly: reading the metadata of every installed package takes long.
_OWN = {"numpy": ("stagelink_numpy", "NumpyEngine")}


def find_engine(name: str) -> Callable[..., StageEngine]:
    """Return the factory of engine ``name``; see `stagelink.engine.StageEngine` for its arguments.

    Raises:
        ConfigError: ``engine_unknown`` where no such engine is installed, ``engine_import``
            where it is but does not import.
    """
    try:
        return _import(name)
    except ImportError as error:
        raise ConfigError(
            f"engine {name!r} is installed but does not import: {error}", reason="engine_import"
        ) from error


def engine_names() -> list[str]:
    """Names of all installed engines, sorted."""
    found = importlib.metadata.entry_points(group=GROUP)
    return sorted({*_OWN, *(point.name for point in found)})


def _import(name: str) -> Callable[..., StageEngine]:
    if name in _OWN:
        module, attribute = _OWN[name]
        own: Callable[..., StageEngine] = getattr(importlib.import_module(module), attribute)
        return own
    for point in importlib.metadata.entry_points(group=GROUP, name=name):
        found: Callable[..., StageEngine] = point.load()
        return found
    raise ConfigError(
        f"no engine is named {name!r}: installed are {', '.join(engine_names())}",
        reason="engine_unknown",
    )
