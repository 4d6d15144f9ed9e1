"""The errors of this engine's calls: one sentence, one code.

It decides nothing; the callers do.
"""

from __future__ import annotations

from stagelink.engine import EngineError


def refuse(reason: str, expected: str, got: object, stream: int | None = None) -> EngineError:
    """Build the error of a call that is refused before anything changed."""
    where = "" if stream is None else f" for stream {stream}"
    text = f"torch engine: expected {expected}{where}, got {got}; no state was changed"
    return EngineError(text, reason=reason)
