"""Runs every promise of the conformance suite on the MLX engine.

It adds none; tests of what is special to this engine are beside it.
"""

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from stagelink_conformance.promises import *  # noqa: F403
from stagelink_conformance.token_families import TOKEN_FAMILIES
from stagelink_mlx import MlxEngine
from stagelink_numpy.tiny import TINY

STAGELINK_FAMILIES = (*TINY, *TOKEN_FAMILIES)


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return MlxEngine
