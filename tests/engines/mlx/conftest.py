"""The tiny checkpoints of the MLX engine's tests: made once a run, by their family's name.

It compares nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# The promises run on it; on the other plain families they show nothing new of this engine.
_PROMISED = "llama"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the promises on further families to who asks for ``long`` tests."""
    for item in items:
        if item.path.name == "test_promises.py" and item.path.parent.name == "mlx":
            model = item.name.partition("[")[2].rstrip("]").partition("-")[0]
            if model != _PROMISED:
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes the checkpoint of a family, or finds the one made before."""
    pytest.importorskip("transformers", reason="the tiny checkpoints are made with transformers")
    pytest.importorskip("torch", reason="the tiny checkpoints are made with torch")
    from stagelink_conformance.families import make_family

    made: dict[tuple[str, str], Path] = {}

    def folder(name: str, dtype: str = "float32") -> Path:
        if (name, dtype) not in made:
            at = tmp_path_factory.mktemp("tiny") / f"{name}-{dtype}"
            made[name, dtype] = make_family(at, name, dtype)
        return made[name, dtype]

    return folder
