"""stagelink: one model, cut into layer ranges, served by a ring of unlike machines.

Only names live here; each is imported on first use, so that `import stagelink` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagelink.checkpoint.open import open_checkpoint
    from stagelink.errors import (
        CheckpointError,
        ConfigError,
        DeadlineError,
        EngineError,
        LocalProtocolError,
        PeerLostError,
        PeerProtocolError,
        PlacementError,
        RefusedError,
        StagelinkError,
    )
    from stagelink.ring import Ring

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DeadlineError",
    "EngineError",
    "LocalProtocolError",
    "PeerLostError",
    "PeerProtocolError",
    "PlacementError",
    "RefusedError",
    "Ring",
    "StagelinkError",
    "open_checkpoint",
]

_HOME = {
    "Ring": "stagelink.ring",
    "open_checkpoint": "stagelink.checkpoint.open",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the file that defines it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME.get(name, "stagelink.errors")), name)
