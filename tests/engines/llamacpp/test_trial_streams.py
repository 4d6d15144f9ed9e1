"""The trial of a slice runs two sequences: one whose rows another one changes is refused.

What else a trial finds, and how it ends, is in test_hostile_files.py.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.native_chain import read_source, rule_for
from tests.engines.llamacpp.tiny_gguf import NAMES, make_gguf

from stagelink.engine import CheckpointError
from stagelink_llamacpp import trial
from stagelink_llamacpp.context import Context, Nodes

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink_llamacpp.context import Floats


class _Mixing(Context):
    """Puts the rows of every sequence of a call behind each other into one."""

    def rows(self, rows: Floats, firsts: list[tuple[int, int, int]], out: Floats) -> None:
        if len(firsts) > 1:
            firsts = [(0, self.held(0), len(rows))]
        super().rows(rows, firsts, out)


class _Leaking(Context):
    """Begins a sequence with what another one left in its place."""

    def forget(self, sequence: int, position: int = 0) -> bool:
        return True if sequence == 0 else super().forget(sequence, position)

    def rows(self, rows: Floats, firsts: list[tuple[int, int, int]], out: Floats) -> None:
        moved = [(0, max(first, self.held(0)), count) for _, first, count in firsts]
        super().rows(rows, moved if len(firsts) == 1 else firsts, out)


def _try(path: Path) -> int:
    rule = rule_for(read_source(path))
    node = [f"l_out-{rule.layers - 1}", rule.rows_node or "-", str(rule.positions_per_row)]
    return trial.main([str(path), *node, "70", "float16", "cpu"])


@pytest.fixture(autouse=True)
def _no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.alarm", lambda _: 0)


@pytest.mark.parametrize("name", NAMES)
def test_two_sequences_of_every_architecture_leave_each_other_alone(
    name: str, tmp_path: Path
) -> None:
    assert _try(make_gguf(tmp_path, name, kind="Q8_0")) == trial._DONE


@pytest.mark.parametrize("fault", [_Mixing, _Leaking])
@pytest.mark.parametrize("name", ["llama", "deepseek2", "gemma3", "qwen3moe"])
def test_a_slice_that_mixes_its_sequences_is_told_so(
    name: str,
    fault: type[Context],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trial, "Context", fault)
    assert _try(make_gguf(tmp_path, name, kind="Q8_0")) == trial._MIXED
    assert "rows of a sequence that another one in the call changed" in capsys.readouterr().err


def test_a_slice_that_mixes_its_sequences_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGELINK_LLAMACPP_TRIAL", "on")
    real, path = trial._run, tmp_path / "any.gguf"
    path.write_bytes(b"any")
    asked = [sys.executable, "-c", f"raise SystemExit({trial._MIXED})"]
    monkeypatch.setattr(trial, "_run", lambda _, seconds, alive: real(asked, seconds, alive))
    with pytest.raises(CheckpointError) as caught:
        trial.tried(path, Nodes("l_out-7"), "any", lambda: None)
    assert caught.value.reason == "streams_mixed"
    assert [one.name for one in tmp_path.iterdir()] == ["any.gguf"]
