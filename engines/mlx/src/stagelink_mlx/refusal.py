"""The checks that this engine shares with all others, and the errors of its calls and configs.

It decides nothing; the callers do.
"""

from __future__ import annotations

from stagelink.engine import ConfigError, EngineChecks

CHECKS = EngineChecks("mlx")
refuse = CHECKS.refuse
ADVICE = "install stagelink[transformers] and use --engine transformers"


def refuse_field(key: str, expected: str, got: object, reason: str = "config_field") -> ConfigError:
    """Return the refusal of a field of a config."""
    shown = "nothing" if got is None else repr(got)[:60]
    return ConfigError(
        f"mlx engine: config field {key}: expected {expected}, got {shown}; {ADVICE}",
        reason=reason,
    )
