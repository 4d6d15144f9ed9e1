"""Runs the promises about state on the torch engine: windows, sinks, experts, scaled residuals.

Latents and recurrent layers have tests of their own beside this one. All of these families but two
are for a run by hand.
"""

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

from stagelink_conformance.promises.test_state import *  # noqa: F403
from stagelink_torch import TorchEngine

STAGELINK_FAMILIES = (
    "gemma3_text",
    "mixtral",
    "gpt_oss",
    "qwen3_moe",
    "smollm3",
    "granite",
    "olmo2",
)


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return TorchEngine
