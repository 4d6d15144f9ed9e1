"""A stage of SmolLM2, in a process of its own, reads and holds its own layers and little more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# Interpreter, imports, tables, scratch and everything else beside weights and KV.
ALLOWANCE_BYTES = 150 << 20
CONTEXT, STREAMS = 2048, 4

_STAGE = """
import json, sys
import numpy as np
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import OPEN, EngineSettings, read_family
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_numpy import NumpyEngine

first, end, context, streams = map(int, sys.argv[1:])
checkpoint = open_checkpoint("smollm2")
family = read_family(checkpoint.config)
settings = EngineSettings(context=context, streams_max=streams)
engine = NumpyEngine(checkpoint, family, first, end, lead=first == 0, settings=settings)
engine.load()
engine.warm()
size = settings.rows_max * family.width * 4
source, target = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
plan = RoundPlan.of(Entry(1, OPEN, 0, settings.rows_max))
if first == 0:
    checkpoint.tokenizer().encode("a lead also has the tokenizer")
    engine.run_first(plan, np.zeros(settings.rows_max, np.int64), target)
    engine.run_head(target[: family.width * 4], 1)
else:
    engine.run(plan, source, target)
_, cache = engine._ready()
# As if every stream had come to the end of its context: pages count once they are touched.
cache.keys[...], cache.values[...] = 0.5, 0.5
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = family.own_tensors(first, end, first == 0)
print(json.dumps({
    # Not ru_maxrss: that of a child begins with what its parent held when it was started.
    "peak": int(status["VmHWM"].split()[0]) * 1024,
    "read": checkpoint.bytes_read,
    "own": sum(checkpoint.tensors[name].nbytes for name in names),
    "held": engine.describe().weight_bytes,
    "kv": cache.nbytes,
}))
"""


def _measure(first: int, end: int) -> dict[str, Any]:
    """Run one stage to its end and return what it reports."""
    argv = [sys.executable, "-c", _STAGE, *map(str, (first, end, CONTEXT, STREAMS))]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, timeout=100, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(("first", "end"), [(0, 10), (10, 20), (20, 30)])
def test_a_stage_reads_and_holds_its_own_layers_only(first: int, end: int) -> None:
    report = _measure(first, end)
    assert report["own"] <= report["read"] <= 1.02 * report["own"]
    assert report["peak"] <= report["held"] + report["kv"] + ALLOWANCE_BYTES
