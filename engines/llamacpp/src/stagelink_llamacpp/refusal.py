"""The checks that this engine shares with all others, and the errors of its calls.

It decides nothing; the callers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from stagelink.engine import EngineChecks

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink.engine import CheckpointError, ConfigError, EngineError

_Failed = TypeVar("_Failed", bound="CheckpointError | ConfigError | EngineError")

CHECKS = EngineChecks("llamacpp")
refuse = CHECKS.refuse


def named(error: _Failed, source: Path) -> _Failed:
    """Return the same error behind the path of the user's own file."""
    text = f"{source}: {error}"
    return type(error)(text, reason=error.reason, operation=error.operation)
