"""Runs the promises of the conformance suite on the transformers engine, on two families.

A step costs ten times the numpy engine's; the other families are in tests/exactness, and all by
`pytest --pyargs stagelink_conformance.promises` (docs/testing.md).
"""

import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

from stagelink_conformance.promises.test_loading import *  # noqa: F403
from stagelink_conformance.promises.test_refusals import *  # noqa: F403
from stagelink_conformance.promises.test_state import *  # noqa: F403
from stagelink_conformance.promises.test_streams import *  # noqa: F403
from stagelink_transformers import TransformersEngine

# Recurrent layers and windows: what is hardest to cut back.
STAGELINK_FAMILIES = ("qwen3_next", "gemma3_text")


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return TransformersEngine
