"""A whole node's memory, on rank 0 and behind it: the engine's, and all that a node has beside it.

test_memory.py measures engines by themselves, with every stream full.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.wide_gguf import WIDE, make_wide

from stagelink.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
CONTEXT, STREAMS, PROMPT, TOKENS = 1024, 4, 512, 200
ALLOWANCE = 100 * MIB
# Runs `stagelink node`; at its end it leaves the most that was resident since loading began.
_NODE = """
import atexit, sys
from pathlib import Path
from stagelink.cli.main import main
from stagelink.node.stage import Stage

load = Stage.load

def loading(self, *asked):
    Path("/proc/self/clear_refs").write_text("5")
    load(self, *asked)

def leave():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    Path(sys.argv[1]).write_text(status["VmHWM"].split()[0])

Stage.load = loading
atexit.register(leave)
sys.exit(main(["node", *sys.argv[2:]]))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", WIDE)
def test_a_node_of_a_wide_file_holds_its_tensors_its_kv_and_a_fixed_allowance(
    tmp_path: Path, slices: Path, name: str
) -> None:
    assert slices.is_dir()
    shape = WIDE[name]
    path = make_wide(tmp_path, shape)
    _assert_held(path, 2 * shape.kv_heads * shape.head, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_node_of_smollm2_holds_its_tensors_its_kv_and_a_fixed_allowance(
    smollm2: Path, slices: Path, tmp_path: Path
) -> None:
    assert slices.is_dir()
    text = "All the words that there are. " * 60
    _assert_held(smollm2, 2 * 3 * 64, tmp_path, text)


def _assert_held(path: Path, kv_width: int, folder: Path, text: str | None = None) -> None:
    """Run a ring of two nodes through a prompt and an answer, and hold the peak of each."""
    for stage, peak in _measured(path, folder, text):
        own = stage["tensor_bytes_held"]
        # Keys and values, in float16.
        kv = (stage["end"] - stage["first"]) * CONTEXT * STREAMS * kv_width * 2
        told = f"own {own / MIB:.1f}, KV {kv / MIB:.1f}, besides {(peak - own - kv) / MIB:.1f} MiB"
        print(f"{path.parent.name}/{path.name} rank {stage['rank']}: {told}")
        assert peak <= own + kv + ALLOWANCE, f"rank {stage['rank']}: {told}"


def _measured(path: Path, folder: Path, text: str | None) -> list[tuple[dict[str, int], int]]:
    """Return the report of each rank, and the most bytes that its process held."""
    key = folder / "key"
    assert main(["keygen", str(key)]) == 0
    ids = ",".join(str(3 + number) for number in range(PROMPT))
    shapes = f"--engine llamacpp --threads 1 --context {CONTEXT} --streams-max {STREAMS} --json"
    asked = [*shapes.split(), "--world", "2", "--key-file", str(key), "--chunk-rows", "128"]
    prompt = ["--prompt-ids", ids] if text is None else ["--prompt", text]
    lead = [*prompt, "--max-tokens", str(TOKENS), "--ignore-eos", "--listen", "127.0.0.1:0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))

    def node(rank: int, *own: str) -> subprocess.Popen[str]:
        peak = str(folder / f"peak{rank}")
        command = [sys.executable, "-c", _NODE, peak, "--rank", str(rank), *asked, *own, str(path)]
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with node(0, *lead) as first:
        assert first.stderr is not None
        said = first.stderr.readline()
        address = said.partition("listening on ")[2].partition(";")[0]
        with node(1, "--lead", address) as second:
            told, wrong = first.communicate(timeout=400)
            second.communicate(timeout=60)
    result = json.loads(told)
    assert "stages" in result, said + wrong
    assert len(result["token_ids"]) == TOKENS
    peaks = (int((folder / f"peak{rank}").read_text()) * 1024 for rank in range(2))
    return list(zip(result["stages"], peaks, strict=True))
