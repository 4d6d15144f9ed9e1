"""A refusal code is one name and one number everywhere, and a bad vector shows when it is raised.

The places: docs/protocol.md 9, rust/proto error.rs, the binding's refusal_codes(), tests/vectors.
"""

from __future__ import annotations

import json
import re

from tests.architecture.tree import ROOT
from tests.support.second_reader.codes import NAMES, NUMBERS, PAGE

from stagelink import _native

# Raised by time, by a machine or by a person, never by bytes; a fate carries them.
NOT_FROM_BYTES = frozenset(
    ("peer_lost", "deadline", "silent", "stalled", "engine", "interrupted", "never_joined", "local")
)
_RUST_ROW = re.compile(r'^ +(\d+) \w+ "(\w+)" "', re.MULTILINE)


def test_the_page_lists_each_number_and_each_name_once() -> None:
    assert len(NUMBERS) == len(NAMES) > 100
    assert NUMBERS.keys() >= NOT_FROM_BYTES


def test_rust_has_the_names_and_numbers_of_the_page() -> None:
    source = (ROOT / "rust/proto/src/error.rs").read_text(encoding="utf-8")
    rows = {name: int(number) for number, name in _RUST_ROW.findall(source)}
    assert rows == NUMBERS


def test_the_binding_has_the_names_and_numbers_of_the_page() -> None:
    assert _native.refusal_codes() == NUMBERS


def test_every_code_that_bytes_can_raise_has_a_bad_vector() -> None:
    manifest = json.loads((ROOT / "tests/vectors/manifest.json").read_text(encoding="utf-8"))
    shown = {vector["refusal"] for vector in manifest["vectors"]} - {None}
    assert shown == NUMBERS.keys() - NOT_FROM_BYTES


def test_every_code_stands_with_a_rule_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rules = text[: text.index("## 9. ")]
    # The eight fields share one mention, and a local fault has no rule of the wire.
    unnamed = {name for name in NUMBERS if f"`{name}`" not in rules}
    fields = {name for name in NUMBERS if name.startswith("fingerprint_")}
    assert unnamed <= fields | NOT_FROM_BYTES
