"""The tiny checkpoints of the tests on a device: made once a run, by their family's name.

It compares nothing.
"""

from __future__ import annotations

import pytest

from stagelink_conformance.families import Tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return a function that makes the checkpoint of a family, or finds the one made before."""
    pytest.importorskip("transformers", reason="the tiny checkpoints are made with transformers")
    return Tiny(tmp_path_factory.mktemp("tiny"))
