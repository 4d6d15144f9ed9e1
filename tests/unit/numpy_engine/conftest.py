"""Tiny models and plans for the numpy engine's own tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stagelink.engine import EngineSettings
from stagelink_conformance.stages import Stages
from stagelink_numpy import NumpyEngine
from stagelink_numpy.tiny import TINY, make_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = EngineSettings(context=160, streams_max=4, rows_max=96, chunk_rows=32)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One checkpoint of each tiny family."""
    folder = tmp_path_factory.mktemp("tiny")
    return {name: make_tiny(folder / name, name) for name in TINY}


@pytest.fixture
def llama(tiny: dict[str, Path]) -> Iterator[Stages]:
    """Stages of the tiny tied llama on the numpy engine."""
    made = Stages(NumpyEngine, tiny["llama"], SETTINGS)
    yield made
    made.close()
