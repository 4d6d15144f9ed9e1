"""`stagelink inspect` warns of planned cuts that only llama.cpp's slices do not allow.

The rules themselves are in test_rules.py, and engines without a word of their own in tests/unit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.open import open_checkpoint
from stagelink.cli.main import main
from stagelink.engine import ConfigError
from stagelink_llamacpp import LlamaCppEngine

if TYPE_CHECKING:
    from pathlib import Path

_MARK = "warning        "


def _facts(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["inspect", str(path), "--json", *flags]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def _warned(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert main(["inspect", str(path), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.removeprefix(_MARK) for line in lines if line.startswith("warning")]


def test_a_cut_that_floats_allow_and_a_slice_does_not_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_gguf(tmp_path, "smollm3")
    (line,) = _warned(path, capsys, "--layers", "0-3,3-6,6-8")
    assert line.startswith(
        "llamacpp forbids the cut before layer 3 (nearest allowed: 4), 6 (nearest allowed: 4): "
    )
    assert "multiple of 4" in line
    told = _facts(path, capsys, "--layers", "0-3,3-6,6-8")
    assert told["warnings"] == [line]
    # The model itself can be cut everywhere: what is of one engine stands apart.
    assert told["forbidden_cuts"] == {}
    assert told["engine_cuts"] == {"llamacpp": [4]}
    forbidden = told["engine_forbidden_cuts"]
    assert forbidden.keys() == {"llamacpp"}
    assert forbidden["llamacpp"].keys() == set("123567")
    assert all("nearest allowed: 4" in why for why in forbidden["llamacpp"].values())
    refused = [one["engines_refused"].get("llamacpp", "") for one in told["stages"]]
    assert ["at 3;" in refused[0], "at 3;" in refused[1], "at 6;" in refused[2]] == [True] * 3


@pytest.mark.parametrize("name", ["qwen3next", "qwen35", "qwen35moe"])
def test_an_even_cut_that_a_slice_does_not_allow_is_said(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_gguf(tmp_path, name, block_count=12)
    (line,) = _warned(path, capsys, "--stages", "4")
    assert line.startswith("llamacpp forbids the cut before layer 3 (nearest allowed: 4): ")
    told = _facts(path, capsys, "--stages", "4")
    assert told["warnings"] == [line]
    assert told["engine_forbidden_cuts"]["llamacpp"].keys() == {"1", "2", "3", "11"}
    assert [bool(one["engines_refused"]) for one in told["stages"]] == [True, False, False, False]


def test_a_stage_between_allowed_cuts_that_has_too_few_kinds_of_layers_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_gguf(tmp_path, "qwen35", block_count=12)
    (line,) = _warned(path, capsys, "--layers", "0-4,4-7,7-12")
    assert line.startswith("llamacpp refuses a stage of layers 4-7: ")
    assert line.endswith("nearest allowed: 3-7 and 4-8")


@pytest.mark.parametrize(
    ("name", "layers"), [("qwen35", "0-4,4-8,8-12"), ("smollm3", "0-4,4-12"), ("llama", "0-1,1-12")]
)
def test_a_plan_that_llama_cpp_takes_has_no_warning(
    name: str, layers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_gguf(tmp_path, name, block_count=12)
    told = _facts(path, capsys, "--layers", layers)
    assert told["warnings"] == []
    assert not any(one["engines_refused"] for one in told["stages"])
    assert _warned(path, capsys, "--layers", layers) == []


def test_the_engine_says_of_each_range_what_its_constructor_would(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_gguf(tmp_path, "smollm3"), floats=False)
    assert LlamaCppEngine.range_refused(checkpoint, 0, 4) is None
    assert "nearest allowed: 4" in str(LlamaCppEngine.range_refused(checkpoint, 4, 6))
    with pytest.raises(ConfigError) as caught:
        LlamaCppEngine.range_refused(_Folder, 0, 4)  # type: ignore[arg-type]
    assert caught.value.reason == "engine_checkpoint"


class _Folder:
    """A checkpoint that is no GGUF file."""

    path = "model"
    gguf = None
