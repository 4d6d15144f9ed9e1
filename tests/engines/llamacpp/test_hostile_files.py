"""GGUF files from a stranger: an error line or a model that runs, never a dead launcher or a hang.

The mutants are opened, sliced, loaded and run in a process of their own, which must end by itself:
it is the launcher whose only stage is its own.
"""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.mutants import mutated, run
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.gguf_source import read_source
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CheckpointError, EngineError, EngineSettings, read_family
from stagelink_llamacpp import LlamaCppEngine, trial
from stagelink_llamacpp.context import Nodes
from stagelink_llamacpp.library import library
from stagelink_llamacpp.trial import tried

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.errors import StagelinkError

ROOT = Path(__file__).parents[3]
NAMES = ("llama", "qwen3moe", "gemma3", "qwen35", "deepseek2", "gpt-oss", "phi3", "granite")
_FILE_SECONDS = 10
_TOKENIZER = b"tokenizer.ggml.model"


@pytest.fixture
def _trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELINK_LLAMACPP_TRIAL", "on")
    monkeypatch.setenv("STAGELINK_CACHE", str(tmp_path / "cache"))


def _write_mutants(folder: Path, seeds: Iterable[int]) -> Path:
    """Write a file for each seed; half of them have all their faults before the tokenizer."""
    sources = []
    for name in NAMES:
        path = make_gguf(folder, name, kind="Q8_0")
        data = path.read_bytes()
        head = min(one.offset for one in read_source(path).tensors.values())
        sources.append((data, (head, data.index(_TOKENIZER))))
    mutants = folder / "mutants"
    mutants.mkdir()
    for seed in seeds:
        data, heads = sources[seed % len(sources)]
        mutant = mutated(data, heads[seed // len(sources) % 2], seed)
        (mutants / f"{seed:04d}-{NAMES[seed % len(NAMES)]}.gguf").write_bytes(mutant)
    return mutants


def _outcomes(mutants: Path, folder: Path) -> collections.Counter[str]:
    """Let a launcher take every file; return how often each outcome came."""
    files = len(list(mutants.iterdir()))
    environment = os.environ | {
        "STAGELINK_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.llamacpp.mutants", str(mutants)],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
        text=True,
        timeout=files * _FILE_SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-200:]} {done.stderr[-2000:]}"
    lines = done.stdout.splitlines()
    assert len(lines) == files
    return collections.Counter(line.split(" ", 1)[1] for line in lines)


@pytest.mark.usefixtures("_trials")
def test_mutated_files_give_an_error_line_or_a_model_that_runs(tmp_path: Path) -> None:
    outcomes = _outcomes(_write_mutants(tmp_path, range(40)), tmp_path)
    # The mutants must reach all the way: a check that refuses every file would show nothing.
    assert outcomes["ran"] > 0
    assert outcomes["header"] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("_trials")
def test_five_hundred_mutated_files_give_an_error_line_or_a_model_that_runs(tmp_path: Path) -> None:
    outcomes = _outcomes(_write_mutants(tmp_path, range(1000, 1500)), tmp_path)
    assert outcomes["ran"] > 5
    assert outcomes["load"] > 0


@pytest.mark.usefixtures("_trials")
def test_a_file_that_makes_llama_cpp_abort_is_refused_and_the_process_lives(
    tmp_path: Path,
) -> None:
    # llama.cpp asserts in the middle of a graph that this number is not negative. The reader that
    # comes first refuses it too; here is what would happen with a number that it does not know.
    path = make_gguf(tmp_path, "granite", attention__layer_norm_rms_epsilon=-1.0)
    with pytest.raises(CheckpointError) as caught:
        tried(path, Nodes("l_out-7"), "any", lambda: None)
    assert caught.value.reason == "native_abort"
    assert "SIGABRT" in str(caught.value)
    # What is in the cache is taken without a trial at the next start: this must not be.
    assert not path.exists()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files of the trials that are run from now on."""
    found: list[str] = []
    real = trial._run

    def note(command: list[str], *others: object) -> tuple[str, str]:
        found.append(next(one for one in command if one.endswith(".gguf")))
        return real(command, *others)

    monkeypatch.setattr(trial, "_run", note)
    return found


@pytest.mark.usefixtures("_trials")
def test_a_stage_file_is_tried_once_and_again_only_for_another_llama_cpp_or_kv(
    tmp_path: Path, runs: list[str]
) -> None:
    path = make_gguf(tmp_path, "llama")
    for _ in range(2):
        stage = _stage(path)
        stage.load()
        stage.close()
    files = sorted((tmp_path / "cache" / "slices").glob("*.gguf"))
    assert sorted(runs) == [str(file) for file in files]
    layers = next(file for file in files if "-0-8-" in file.name)
    for asked in (("another", "float16"), (library().versions, "float32")):
        tried(layers, Nodes("l_out-7"), asked[0], lambda: None, kv=asked[1])
    assert runs[-2:] == [str(layers)] * 2


@pytest.mark.usefixtures("_trials")
def test_another_file_under_the_name_of_one_that_was_tried_is_tried(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "llama")
    tried(path, Nodes("l_out-7"), "any", lambda: None)
    path.write_bytes(b"not a GGUF file")
    with pytest.raises(CheckpointError) as caught:
        tried(path, Nodes("l_out-7"), "any", lambda: None)
    assert caught.value.reason == "load"


@pytest.mark.usefixtures("_trials")
def test_a_file_that_is_replaced_while_it_is_tried_has_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "llama")

    def replace(*_: object) -> tuple[str, str]:
        new = tmp_path / "new.gguf"
        new.write_bytes(path.read_bytes())
        new.replace(path)
        return "", trial._STORED

    monkeypatch.setattr(trial, "_run", replace)
    tried(path, Nodes("l_out-7"), "any", lambda: None)
    assert not list(tmp_path.glob("*.tried-*"))


@pytest.mark.usefixtures("_trials")
def test_an_untouched_file_runs(tmp_path: Path) -> None:
    assert run(make_gguf(tmp_path, "qwen35", kind="Q8_0")) == "ran"


def _stage(path: Path) -> LlamaCppEngine:
    checkpoint = open_checkpoint(path)
    family = read_family(checkpoint.config)
    settings = EngineSettings(
        context=32, rows_max=16, chunk_rows=8, streams_max=1, threads=1, device="cpu"
    )
    return LlamaCppEngine(checkpoint, family, 0, family.layers, lead=True, settings=settings)


@pytest.mark.usefixtures("_trials")
def test_a_file_that_llama_cpp_refuses_is_refused_with_its_reason_and_no_other_words(
    tmp_path: Path,
) -> None:
    path = make_gguf(tmp_path, "phi3", tensors={"blk.5.ffn_up.weight": None})
    with pytest.raises(CheckpointError, match=r"blk\.5\.ffn_up\.weight' not found") as caught:
        _stage(path).load()
    assert caught.value.reason == "load"
    assert "Warning" not in str(caught.value)
    assert "dummy" not in str(caught.value)


@pytest.mark.parametrize(("trials", "kind"), [("on", CheckpointError), ("off", EngineError)])
def test_what_llama_cpp_refuses_is_said_of_the_users_file_not_of_the_slice_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: str, kind: type[StagelinkError]
) -> None:
    monkeypatch.setenv("STAGELINK_LLAMACPP_TRIAL", trials)
    monkeypatch.setenv("STAGELINK_CACHE", str(tmp_path / "cache"))
    path = make_gguf(tmp_path, "phi3", tensors={"blk.5.ffn_up.weight": None})
    with pytest.raises(kind) as caught:
        _stage(path).load()
    assert caught.value.reason == "load"
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert text.count(str(path)) == 1
    assert "blk.5.ffn_up.weight' not found" in text
    assert "\n" not in text


def test_a_trial_ends_with_the_ring_that_waits_for_it() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trial._run([sys.executable, "-c", "import time; time.sleep(60)"], 60.0, stop)
    assert time.monotonic() - began < 30


def test_a_trial_that_nobody_waits_for_ends_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms: list[int] = []
    monkeypatch.setattr("signal.alarm", alarms.append)
    path = make_gguf(tmp_path, "llama")
    assert trial.main([str(path), "l_out-7", "-", "1", "70", "float32", "cpu"]) == 0
    assert alarms == [70]


@pytest.mark.parametrize(
    ("code", "seconds", "got"),
    [
        ("import time; time.sleep(60)", 0.1, "no end in 0 s"),
        ("import not_there_at_all", 60.0, "did not start"),
        ("import os; os.kill(os.getpid(), 9)", 60.0, "SIGKILL"),
    ],
)
def test_a_trial_that_says_nothing_of_the_file_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, seconds: float, got: str
) -> None:
    monkeypatch.setenv("STAGELINK_LLAMACPP_TRIAL", "on")
    real, path = trial._run, tmp_path / "any.gguf"
    path.write_bytes(b"any")
    asked = [sys.executable, "-c", code]
    monkeypatch.setattr(trial, "_run", lambda _, __, alive: real(asked, seconds, alive))
    with pytest.raises(CheckpointError, match=got) as caught:
        tried(path, Nodes("l_out-7"), "any", lambda: None)
    assert caught.value.reason == "trial"
    assert path.exists()
