"""Runs the promises of the conformance suite on the transformers engine, on one plain family.

What is special to kinds of layers is in test_state_promises.py; bits are in tests/exactness, for
every family. A step costs ten times the numpy engine's (docs/testing.md has the whole suite).
"""

import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

from stagelink_conformance.promises.test_hostile import *  # noqa: F403
from stagelink_conformance.promises.test_loading import *  # noqa: F403
from stagelink_conformance.promises.test_refusals import *  # noqa: F403
from stagelink_conformance.promises.test_streams import *  # noqa: F403
from stagelink_transformers import TransformersEngine

STAGELINK_FAMILIES = ("llama3",)


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return TransformersEngine
