"""The second, pure-Python reader agrees with every vector, and the vectors with their tables.

It says nothing about the Rust implementation: that is test_vectors.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.second_reader.codes import NUMBERS
from tests.support.second_reader.judge import judge
from tests.support.second_reader.wire import crc32c

VECTORS = Path(__file__).parents[1] / "vectors"
MANIFEST = json.loads((VECTORS / "manifest.json").read_text(encoding="utf-8"))["vectors"]


def test_the_checksum_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_every_name_stands_once() -> None:
    names = [vector["name"] for vector in MANIFEST]
    assert len(set(names)) == len(names)


def test_every_refusal_is_a_code_of_the_page() -> None:
    refusals = {vector["refusal"] for vector in MANIFEST} - {None}
    assert refusals <= NUMBERS.keys()


def test_good_and_bad_names_say_what_they_are() -> None:
    for vector in MANIFEST:
        stem = vector["name"].partition("/")[2]
        assert stem.startswith("bad_") == (vector["refusal"] is not None), vector["name"]


def test_the_stored_files_are_those_of_the_tables() -> None:
    script = [sys.executable, str(VECTORS / "assemble.py"), "--check"]
    result = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("vector", MANIFEST, ids=lambda vector: vector["name"])
def test_the_second_reader_agrees(vector: dict[str, Any]) -> None:
    files = [(VECTORS / name).read_bytes() for name in vector["files"]]
    verdict = judge(vector, files)
    assert verdict.refusal == vector["refusal"], vector["note"]
    for name, expected in vector["value"].items():
        assert verdict.value[name] == expected, name
