"""The Rust implementation, through the binding, agrees with every vector.

The vectors are judged by the second reader too (test_second_reader.py); nothing here decodes bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.second_reader.codes import NUMBERS

from stagelink import _native

VECTORS = Path(__file__).parents[1] / "vectors"
MANIFEST = json.loads((VECTORS / "manifest.json").read_text(encoding="utf-8"))["vectors"]


@pytest.mark.parametrize("vector", MANIFEST, ids=lambda vector: vector["name"])
def test_the_binding_agrees(vector: dict[str, Any]) -> None:
    files = {name: (VECTORS / name).read_bytes() for name in vector["files"]}
    assert _native.run_vector(vector, files) == vector["refusal"], vector["note"]


def test_the_binding_knows_the_codes_of_the_page() -> None:
    assert _native.refusal_codes() == NUMBERS
