"""Runs every promise of the conformance suite on the numpy engine.

It adds none; tests of what is special to this engine are beside it.
"""

import pytest

from stagelink_conformance.promises import *  # noqa: F403
from stagelink_numpy import NumpyEngine


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return NumpyEngine
