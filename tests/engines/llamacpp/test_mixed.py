"""Stages of llama.cpp between stages of other engines, on the same GGUF file: float32 rows cross.

In one process; rings of processes are in test_ring.py.
"""

from __future__ import annotations

import importlib
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import chunked, random_ids
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink_conformance.pipeline import Outcome

_CLASSES = {
    "numpy": ("stagelink_numpy", "NumpyEngine"),
    "llamacpp": ("stagelink_llamacpp", "LlamaCppEngine"),
    "torch": ("stagelink_torch", "TorchEngine"),
    "mlx": ("stagelink_mlx", "MlxEngine"),
}
_CUTS = (3, 5)
# Float32 weights and KV everywhere: two such engines differ by the order of their sums only.
_CLOSE = 2e-4


def _play(path: Path, engines: tuple[str, ...]) -> list[Outcome]:
    stages = []
    bounds = (0, *_CUTS, 8) if len(engines) > 1 else (0, 8)
    for name, (first, end) in zip(engines, itertools.pairwise(bounds), strict=True):
        module, attribute = _CLASSES[name]
        made = getattr(pytest.importorskip(module, reason=f"no {name} engine here"), attribute)
        kv = "float32" if name == "llamacpp" else "auto"
        settings = EngineSettings(context=96, rows_max=64, kv_dtype=kv, threads=1)
        checkpoint = open_checkpoint(path)
        family = read_family(checkpoint.config)
        stages.append(made(checkpoint, family, first, end, lead=first == 0, settings=settings))
        stages[-1].load()
    pipeline = Pipeline(stages)
    ids = random_ids(5, 44, 256)
    outcomes = pipeline.play([*chunked(1, ids[:40], 16), *chunked(1, ids[40:], 1, at=40)])
    pipeline.close()
    return outcomes


@pytest.mark.parametrize(
    "engines",
    [
        ("numpy", "llamacpp", "numpy"),
        ("llamacpp", "numpy", "llamacpp"),
        ("torch", "llamacpp", "numpy"),
        ("llamacpp", "torch", "mlx"),
        ("mlx", "llamacpp", "torch"),
    ],
    ids="-".join,
)
@pytest.mark.usefixtures("slices")
def test_a_mixed_ring_is_close_to_one_engine_and_repeats_its_bits(
    engines: tuple[str, ...], tmp_path: Path
) -> None:
    for name in engines:
        module = {"torch": "torch", "mlx": "mlx"}.get(name)
        if module is not None and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    path = make_gguf(tmp_path, "llama")
    mixed, whole = _play(path, engines), _play(path, ("numpy",))
    for one, other in zip(mixed, whole, strict=True):
        assert float(np.abs(one.logits - other.logits).max()) <= _CLOSE
        assert (one.logits.argmax(1) == other.logits.argmax(1)).all()
    assert_same_bits(_play(path, engines), mixed)
