"""Speculative decoding with a checkpoint's own head: what is accepted; texts stay equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")
pytest.importorskip("transformers", reason="the tiny checkpoints are made with transformers")

import drafter
from stagelink_conformance.drafters import FAMILIES, make_drafter_family

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", FAMILIES)
def test_a_head_that_knows_the_model_is_always_accepted(tmp_path: Path, name: str) -> None:
    model = make_drafter_family(tmp_path / name, name, repeats=True)
    line = drafter.measure(*drafter.load(model, "float32"), 3, 20)
    assert line["accepted"] == line["offered"]
    assert line["tokens_a_round"] == 4
    assert line["equal_texts"] == line["texts"]


@pytest.mark.parametrize("name", ["qwen3_next", "deepseek_v3"])
def test_a_head_that_guesses_changes_no_text(tmp_path: Path, name: str) -> None:
    model = make_drafter_family(tmp_path / name, name)
    line = drafter.measure(*drafter.load(model, "float32"), 4, 24)
    assert line["equal_texts"] == line["texts"]
    assert sum(line["accepted"]) < sum(line["offered"]) / 2


def test_the_report_says_acceptance_by_place() -> None:
    line = {
        "offered": [8, 8],
        "accepted": [6, 2],
        "rounds": 8,
        "tokens_a_round": 2.0,
        "equal_texts": 5,
        "texts": 5,
    }
    assert "75 %, 25 % of 8; 2.00 tokens a round" in drafter.report(line)


def test_a_missing_model_is_refused_with_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        drafter.main([])
    assert refusal.value.code == 2
    assert "expected" in capsys.readouterr().err
