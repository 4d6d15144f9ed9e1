"""A stage's memory: its own tensors as stored, its KV, and a hundred MiB; measured in a process.

Bytes read are counted in the promises.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.wide_gguf import HEAD, KV_HEADS, make_wide

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
CONTEXT, STREAMS = 1024, 4
ALLOWANCE = 100 * MIB
# Rank 0 of a vocabulary of 128256: its words in two contexts, and the head's own buffers.
VOCABULARY = 16 * MIB

# Fills every stream of a stage and prints its peak resident bytes, and its own tensors'.
_STAGE = f"""
import sys
import numpy as np
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CONTINUE, OPEN, EngineSettings, read_family
from stagelink_conformance.pipeline import rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_llamacpp import LlamaCppEngine

first, end, ROWS = (int(one) for one in sys.argv[2:5])
checkpoint = open_checkpoint(sys.argv[1])
family = read_family(checkpoint.config)
settings = EngineSettings(
    context={CONTEXT}, streams_max={STREAMS}, rows_max=ROWS, chunk_rows=ROWS, threads=1
)
engine = LlamaCppEngine(checkpoint, family, first, end, lead=first == 0, settings=settings)
engine.load()
engine.warm()
rows = rows_buffer(ROWS * family.width * 4)
rows.view(np.float32)[:] = np.sin(np.arange(ROWS * family.width, dtype=np.float32))
out = rows_buffer(rows.size)
for at in range(0, {CONTEXT}, ROWS):
    for stream in range({STREAMS}):
        op = CONTINUE if at else OPEN
        engine.run(RoundPlan.of(Entry(stream, op, at, ROWS)), rows, out)
if first == 0:
    engine.run_head(rows[: {STREAMS} * family.width * 4], {STREAMS})
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
sizes = [int(status[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS")]
print(*sizes, engine.describe().weight_bytes)
"""


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a file of 350 MB, 2048 wide, with 128256 tokens."""
    return make_wide(tmp_path_factory.mktemp("wide"))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("first", [0, 10])
def test_a_stage_holds_its_tensors_as_stored_its_kv_and_a_fixed_allowance(
    smollm2: Path, slices: Path, first: int
) -> None:
    assert slices.is_dir()
    # Keys and values of three heads of 64.
    peak, _, own, kv = _measured(smollm2, (first, first + 10), 256, 3 * 64)
    assert peak <= own + kv + ALLOWANCE, f"{peak / MIB:.1f} MiB"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("first", [0, 3])
def test_a_stage_of_a_wide_file_holds_little_more_beside_them(
    wide: Path, slices: Path, first: int
) -> None:
    assert slices.is_dir()
    # What a round of 256 rows takes in between is above it here: 13 MiB.
    peak, held, own, kv = _measured(wide, (first, first + 3), 128, KV_HEADS * HEAD)
    told = f"peak {peak / MIB:.1f}, held {held / MIB:.1f}, own {own / MIB:.1f}, KV {kv / MIB:.1f}"
    if first:
        assert peak <= own + kv + ALLOWANCE, told
    else:
        # While llama.cpp reorders the vocabulary, the file's pages are there beside the copy.
        assert held <= own + kv + ALLOWANCE + VOCABULARY, told


def _measured(
    path: Path, layers: tuple[int, int], rows: int, kv_width: int
) -> tuple[int, int, int, int]:
    """Return the bytes of a stage: at most, at the end, its own tensors', and its KV's."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", _STAGE, str(path), *map(str, layers), str(rows)],
        capture_output=True,
        check=True,
        env=environment,
        text=True,
        timeout=500,
    )
    peak, held, own = (int(one) for one in done.stdout.split())
    # Keys and values, in float16.
    return peak, held, own, (layers[1] - layers[0]) * CONTEXT * STREAMS * 2 * kv_width * 2
