"""A stage of SmolLM2, in a process of its own, holds its tensors as they are stored, and its KV.

The lead's stage too: it holds the vocabulary once, still quantized. Speed is not looked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
if TYPE_CHECKING:
    from pathlib import Path

# Interpreter, imports, llama.cpp's graph and scratch, and everything else beside weights and KV.
ALLOWANCE_BYTES = 100 << 20
CONTEXT, STREAMS = 2048, 4
# Keys and values in float16, three heads of 64 each.
KV_BYTES_OF_LAYER = 2 * 3 * 64 * 2 * CONTEXT * STREAMS

_STAGE = """
import json, sys
import numpy as np
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import OPEN, EngineSettings, read_family
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_llamacpp import LlamaCppEngine

path, *numbers = sys.argv[1:]
first, end, context, streams = map(int, numbers)
checkpoint = open_checkpoint(path)
family = read_family(checkpoint.config)
settings = EngineSettings(context=context, streams_max=streams, threads=1)
engine = LlamaCppEngine(checkpoint, family, first, end, lead=first == 0, settings=settings)
engine.load()
engine.warm()
size = settings.rows_max * family.width * 4
source, target = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
for stream in range(1, streams + 1):
    plan = RoundPlan.of(Entry(stream, OPEN, 0, settings.rows_max))
    if first == 0:
        engine.run_first(plan, np.zeros(settings.rows_max, np.int64), target)
        engine.run_head(target[: family.width * 4], 1)
    else:
        engine.run(plan, source, target)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    # Not ru_maxrss: that of a child begins with what its parent held when it was started.
    "peak": int(status["VmHWM"].split()[0]) * 1024,
    "held": engine.describe().weight_bytes,
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(("first", "end"), [(10, 20), (0, 10)])
def test_a_stage_holds_its_tensors_as_stored_its_kv_and_little_more(
    smollm2: Path, slices: Path, first: int, end: int
) -> None:
    assert slices.is_dir()
    # The first start writes the slice; what later ones hold is asked for.
    for _ in range(2):
        report = _measure(smollm2, first, end)
    kv = (end - first) * KV_BYTES_OF_LAYER
    print({**report, "kv": kv, "beside": (report["peak"] - report["held"] - kv) / (1 << 20)})
    assert report["peak"] <= report["held"] + kv + ALLOWANCE_BYTES


def _measure(path: Path, first: int, end: int) -> dict[str, Any]:
    """Run one stage to its end and return what it reports."""
    numbers = map(str, (first, end, CONTEXT, STREAMS))
    argv = [sys.executable, "-c", _STAGE, str(path), *numbers]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, timeout=100, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return report
