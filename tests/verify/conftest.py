"""A tiny checkpoint, and a lab whose processes end with the test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.ring.rig import Lab

from stagelink_numpy.tiny import make_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of eight layers, 64 wide, one token a byte."""
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture
def lab(tmp_path: Path, tiny: Path) -> Iterator[Lab]:
    """A lab that can import the tests' own engines."""
    made = Lab(tmp_path, tiny)
    path = made.environment.get("PYTHONPATH")
    made.environment["PYTHONPATH"] = f"{ROOT}:{path}" if path else str(ROOT)
    yield made
    made.end()
