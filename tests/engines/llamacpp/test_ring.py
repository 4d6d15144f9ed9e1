"""Rings of real processes with llama.cpp's stages: answers, and a quiet terminal.

Bits are compared in one process (test_smollm2.py); here it is the command that a user types.
Native aborts are in test_aborts.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

ROOT = Path(__file__).parents[3]
_SECONDS = 90


def _generate(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    command = [sys.executable, "-m", "stagelink", "generate", str(path), *arguments]
    asked = ["--prompt-ids", "5,6,7,8", "--max-tokens", "8", "--ignore-eos", "--context", "64"]
    return subprocess.run(
        [*command, *asked],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
        text=True,
        timeout=_SECONDS,
    )


@pytest.mark.usefixtures("slices")
def test_three_stages_answer_as_the_whole_file_does(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "gemma3", kind="Q8_0")
    tokens = []
    for layers in (("--stages", "1"), ("--layers", "0-3,3-6,6-12")):
        done = _generate(path, "--engine", "llamacpp", "--json", *layers)
        assert done.returncode == 0, done.stderr[-2000:]
        tokens.append(json.loads(done.stdout)["token_ids"])
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 8


@pytest.mark.usefixtures("slices")
def test_nothing_of_llama_cpp_reaches_the_terminal(tmp_path: Path) -> None:
    done = _generate(make_gguf(tmp_path, "llama"), "--engine", "llamacpp", "--quiet", "--raw")
    assert done.returncode == 0
    assert "llama" not in done.stderr
    assert "ggml" not in done.stderr


@pytest.mark.usefixtures("own_cache")
def test_a_person_hears_of_a_damaged_file_of_a_follower_s_cache(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q4_0")
    asked = ("--engine", "llamacpp", "--layers", "0-4,4-8")
    whole = _generate(path, *asked, "--json")
    assert "warnings" not in json.loads(whole.stdout)
    (file,) = (tmp_path / "cache" / "slices").glob("*-4-8-*.gguf")
    data = bytearray(file.read_bytes())
    data[-64] ^= 1
    for told in (True, False):
        file.write_bytes(data)
        done = _generate(path, *asked, *(["--json"] if told else ["--quiet"]))
        assert done.returncode == 0, done.stderr[-2000:]
        said = json.loads(done.stdout)["warnings"] if told else done.stderr.splitlines()
        assert [line for line in said if line.startswith(f"rank 1: warning: {file}")] == said
        assert len(said) == 1
        if told:
            assert json.loads(done.stdout)["token_ids"] == json.loads(whole.stdout)["token_ids"]
