"""The page of a receipt: everything in one file, and nothing that runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from stagelink.verify.page import page

DRIFT = {"rows": 4, "equal": 0, "difference": 0.5, "relative": 0.2, "usual": 0.2}
CLOSE = {
    "positions": 3, "equal": 0, "difference": 0.5, "kl_mean": 0.1, "kl_most": 0.2, "top1": 0.5,
    "disagreements": [], "kl": [0.1, 0.0, "inf"],
}  # fmt: skip
RECEIPT: dict[str, Any] = {
    "receipt": 1, "evidence": "physical", "verdict": "fail", "time": "2026-01-01",
    "stagelink": "0", "faults": ["boundary 4 is <off>"],
    "model": {"name": "<tiny>"}, "settings": {"dtype": "float32"}, "prompts": {"count": 1},
    "machine": {"host": "here"}, "placement": {"id": "abc"},
    "reference": {"kind": "whole", "engine": "numpy", "device": "x", "dtype": "float32",
                  "layers_at_once": None},
    "stages": [{"rank": 0, "first": 0, "end": 4, "engine": "numpy", "device": "<x>"}],
    "limits": {"kl_most": 1e-8, "relative": 1e-4, "usual": 1e-4, "difference": "inf"},
    "checks": [{"check": "close", "passed": False, "text": "a < b", "faults": []},
               {"check": "exact", "passed": None, "text": "not required", "faults": []}],
    "measured": {
        "close": [CLOSE],
        "boundaries": [{"name": "boundary 4", "rank": 0, "engine": "numpy", "end": 4,
                        "is_head": False, "is_off": True, "limit": 1e-4, "own": DRIFT,
                        "chained": None}],
        "greedy": [{"prompt": 0, "tokens": 8, "at": {"position": 3, "gap": 0.1}},
                   {"prompt": 1, "tokens": 8, "at": None}],
    },
}  # fmt: skip


class _Balanced(HTMLParser):
    VOID = frozenset(("meta", "br", "circle", "rect", "line"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002 (the parser's form)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_a_page_needs_nothing_beside_itself() -> None:
    made = page(RECEIPT)
    assert not re.search(r"(src|href)=|<script|@import|url\(", made)


def test_what_a_model_or_a_device_is_called_is_text_on_a_page() -> None:
    made = page(RECEIPT)
    assert "<tiny>" not in made
    assert "&lt;tiny&gt;" in made
    assert "&lt;off&gt;" in made


def test_every_element_is_closed() -> None:
    parser = _Balanced()
    parser.feed(page(RECEIPT))
    assert parser.open == []


def test_a_page_has_a_plot_a_measurement() -> None:
    made = page(RECEIPT)
    assert made.count("<svg") == 3
    assert made.count("<circle") == 3
    assert "splits at token 3" in made
    assert "all 8 tokens" in made


@pytest.mark.parametrize("what", ["close", "boundaries", "greedy"])
def test_what_was_not_measured_has_no_plot(what: str) -> None:
    measured = {**RECEIPT["measured"], what: []}
    assert page({**RECEIPT, "measured": measured}).count("<svg") == 2
