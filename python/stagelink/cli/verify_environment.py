"""The environment of a verification whose process computes with one or two engines.

It imports no engine; what one needs is asked of its entry point.
"""

from __future__ import annotations

import os

from stagelink.cli import settings
from stagelink.engine_registry import engine_environment


def enter_environments(reference: str, own: str | None) -> None:
    """Start this command again where an engine needs something in the environment first.

    Args:
        reference: What computes the reference.
        own: What computes rank 0 of a ring by hand; ``None`` where stages have their own processes.
    """
    before = {} if own is None else engine_environment(own, os.environ)
    # It sees what the other one needs, so that it can add to the same variable.
    more = engine_environment(reference, {**os.environ, **before})
    if own is None or not before:
        settings.enter_environment(reference)
    elif not more:
        settings.enter_environment(own)
    else:
        os.environ.update(before)
        settings.enter_environment(reference)
