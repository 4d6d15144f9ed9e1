"""The tiny checkpoints of the MLX engine's tests: made once a run, by their family's name.

It compares nothing.
"""

from __future__ import annotations

import pytest

from stagelink_conformance.families import Tiny

# The promises run on it; on the other plain families they show nothing new of this engine.
_PROMISED = "llama"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the promises on further families to who asks for ``long`` tests."""
    for item in items:
        is_promise = item.path.name == "test_promises.py" and item.path.parent.name == "mlx"
        if is_promise and item.callspec.params.get("stagelink_model") != _PROMISED:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return a function that makes the checkpoint of a family, or finds the one made before."""
    pytest.importorskip("transformers", reason="the tiny checkpoints are made with transformers")
    pytest.importorskip("torch", reason="the tiny checkpoints are made with torch")
    return Tiny(tmp_path_factory.mktemp("tiny"))
