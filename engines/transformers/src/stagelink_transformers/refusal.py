"""The checks that this engine shares with all others, and the forms of its errors.

It raises nothing itself.
"""

from __future__ import annotations

from stagelink.engine import EngineChecks

CHECKS = EngineChecks("transformers")
refuse = CHECKS.refuse
refuse_config = CHECKS.refuse_config
