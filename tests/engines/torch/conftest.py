"""The tiny checkpoints of the torch engine's tests: made once a run, by their family's name.

It compares nothing.
"""

from __future__ import annotations

import pytest

from stagelink_conformance.families import Tiny

# The promises run on these families here; the others are marked, for a run by hand.
_EVERY_DAY = {
    "engines/torch/test_promises.py": {"llama", "qwen3"},
    "engines/torch/test_state_promises.py": {"gemma3_text", "granite"},
    "engines/torch/test_device_promises.py": {"qwen3_next"},
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the promises on further families as ``long``."""
    for item in items:
        words = set(item.name.replace("[", "-").replace("]", "-").split("-"))
        for file, families in _EVERY_DAY.items():
            if item.path.as_posix().endswith(file) and not words & families:
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return a function that makes the checkpoint of a family, or finds the one made before."""
    pytest.importorskip("transformers", reason="the tiny checkpoints are made with transformers")
    return Tiny(tmp_path_factory.mktemp("tiny"))
