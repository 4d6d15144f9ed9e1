"""The checks that this engine shares with all others, and the errors of its calls.

It decides nothing; the callers do.
"""

from __future__ import annotations

from stagelink.engine import EngineChecks

CHECKS = EngineChecks("torch")
refuse = CHECKS.refuse
