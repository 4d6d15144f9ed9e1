"""The installed version of stagelink, which every rank of a ring must share."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Return the version; ``"0"`` from a bare source tree."""
    try:
        return importlib.metadata.version("stagelink")
    except importlib.metadata.PackageNotFoundError:
        return "0"
