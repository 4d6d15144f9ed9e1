"""Builds this engine's errors in one form.

It raises nothing itself.
"""

from __future__ import annotations

from stagelink.engine import ConfigError, EngineError


def refuse(reason: str, expected: str, got: object, stream: int | None = None) -> EngineError:
    """Build the error of one broken promise of the caller, before any state was changed."""
    where = "" if stream is None else f" for stream {stream}"
    text = f"transformers engine: expected {expected}{where}, got {got}; no state was changed"
    return EngineError(text, reason=reason)


def refuse_config(reason: str, expected: str, got: object, advice: str) -> ConfigError:
    """Build the error of what this engine cannot be made for."""
    text = f"transformers engine: expected {expected}, got {got}; {advice}"
    return ConfigError(text, reason=reason)
