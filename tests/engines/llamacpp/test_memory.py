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

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
CONTEXT, STREAMS, LAYERS = 1024, 4, 10
# Keys and values of three heads of 64 in float16.
KV_BYTES = LAYERS * CONTEXT * STREAMS * 2 * 3 * 64 * 2
ALLOWANCE = 100 * MIB

# Fills every stream of a stage and prints its peak resident bytes, and its own tensors'.
_STAGE = f"""
import sys
import numpy as np
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CONTINUE, OPEN, EngineSettings, read_family
from stagelink_conformance.pipeline import rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_llamacpp import LlamaCppEngine

checkpoint = open_checkpoint(sys.argv[1])
family = read_family(checkpoint.config)
settings = EngineSettings(
    context={CONTEXT}, streams_max={STREAMS}, rows_max=256, chunk_rows=256, threads=1
)
first = int(sys.argv[2])
engine = LlamaCppEngine(
    checkpoint, family, first, first + {LAYERS}, lead=first == 0, settings=settings
)
engine.load()
engine.warm()
rows = rows_buffer(256 * family.width * 4)
rows.view(np.float32)[:] = np.sin(np.arange(256 * family.width))
for at in range(0, {CONTEXT}, 256):
    for stream in range({STREAMS}):
        op = CONTINUE if at else OPEN
        engine.run(RoundPlan.of(Entry(stream, op, at, 256)), rows, rows.copy())
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(int(status["VmHWM"].split()[0]) * 1024, engine.describe().weight_bytes)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("first", [0, 10])
def test_a_stage_holds_its_tensors_as_stored_its_kv_and_a_fixed_allowance(
    smollm2: Path, slices: Path, first: int
) -> None:
    assert slices.is_dir()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", _STAGE, str(smollm2), str(first)],
        capture_output=True,
        check=True,
        env=environment,
        text=True,
        timeout=500,
    )
    peak, own = (int(one) for one in done.stdout.split())
    assert peak <= own + KV_BYTES + ALLOWANCE, f"{peak / MIB:.1f} MiB"
