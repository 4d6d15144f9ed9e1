"""The environment of a launcher or of a debugging person must not leak into these tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "STAGELINK_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
