"""The tiny checkpoints of the transformers engine's tests, and stages of them.

It compares nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.families import Tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return a function that makes the checkpoint of a family, or finds the one made before."""
    pytest.importorskip("transformers", reason="the transformers engine is not installed here")
    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def make_stage() -> Callable[..., Any]:
    """Return a function that makes a stage which is not loaded: folder, first, end, settings."""
    from stagelink_transformers import TransformersEngine

    def make(folder: Path, first: int, end: int, **settings: Any) -> TransformersEngine:
        checkpoint = open_checkpoint(folder)
        family = read_family(checkpoint.config, tensors=checkpoint.tensors)
        limits = {"context": 256, "streams_max": 4, "rows_max": 128, "threads": 1, **settings}
        return TransformersEngine(
            checkpoint, family, first, end, lead=first == 0, settings=EngineSettings(**limits)
        )

    return make
