"""Runs every promise of the conformance suite on the device's path, with the host's twins of it.

It adds none. All kinds of layers but two are for a run by hand.
"""

from typing import Any

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

from tests.engines.torch.on_device import put_on_twins
from tests.engines.torch.tape import TapeRecorder

from stagelink_conformance.promises import *  # noqa: F403
from stagelink_torch import TorchEngine

STAGELINK_FAMILIES = ("qwen3_next", "deepseek_v3", "gpt_oss", "qwen3_moe", "gemma3_text")


class TwinEngine(TorchEngine):
    """As on a device: slabs, lanes and recorded rounds."""

    def load(self, progress: Any = None) -> None:
        """Load, and take the twins once."""
        is_new = self._loaded is None
        super().load(progress)
        if is_new:
            put_on_twins(self, TapeRecorder())


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return TwinEngine
