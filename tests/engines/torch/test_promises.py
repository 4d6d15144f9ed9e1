"""Runs every promise of the conformance suite on the torch engine.

It adds none; tests of what is special to this engine are beside it.
"""

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

from stagelink_conformance.promises import *  # noqa: F403
from stagelink_torch import TorchEngine


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return TorchEngine
