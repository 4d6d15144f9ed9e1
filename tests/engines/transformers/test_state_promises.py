"""Runs the promises about state on the transformers engine: recurrent layers, windows, latents.

Keys and values of every position are the plainest case, and are in test_promises.py.
"""

import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

from stagelink_conformance.promises.test_state import *  # noqa: F403
from stagelink_transformers import TransformersEngine

STAGELINK_FAMILIES = ("qwen3_next", "gemma3_text", "deepseek_v3")


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return TransformersEngine
