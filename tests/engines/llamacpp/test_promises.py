"""Runs every promise of the conformance suite on the llamacpp engine, with a tiny file in float32.

It adds none. Blocks of fewer bits promise the same bytes, but their logits are not within the
suite's tolerances: llama.cpp quantizes what it multiplies them with.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.engine import EngineSettings
from stagelink_conformance.promises import *  # noqa: F403
from stagelink_llamacpp import LlamaCppEngine

if TYPE_CHECKING:
    from pathlib import Path

# What stands for each of the suite's tiny checkpoints.
FILES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama_untied": ("llama3", {}),
    "llama_linear": ("llama", {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return LlamaCppEngine


@pytest.fixture(scope="session")
def stagelink_settings() -> EngineSettings:
    settings = EngineSettings(context=160, streams_max=4, rows_max=96, chunk_rows=32)
    return dataclasses.replace(settings, kv_dtype="float32", threads=1)


@pytest.fixture(scope="session")
def stagelink_model(
    slices: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    assert slices.is_dir()
    name, changes = FILES[request.param]
    return make_gguf(tmp_path_factory.mktemp("tiny"), name, **changes)
