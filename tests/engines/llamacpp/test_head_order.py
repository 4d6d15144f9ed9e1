"""A head that llama.cpp does not copy into another order is loaded once: its trial has told.

How much memory that takes is in test_memory.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_llamacpp import LlamaCppEngine
from stagelink_llamacpp.context import Context
from stagelink_llamacpp.trial import SWITCH

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_cache")


def _loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Start a stage with a head; return how many times llama.cpp loaded the head's file."""
    seen: list[str] = []
    real = Context._load

    def load(context: Context, file: Path, *others: object) -> None:
        seen.append(file.name)
        real(context, file, *others)

    checkpoint = open_checkpoint(path)
    settings = EngineSettings(context=32, rows_max=8, chunk_rows=8, streams_max=1, threads=1)
    family = read_family(checkpoint.config)
    engine = LlamaCppEngine(checkpoint, family, 0, 1, lead=True, settings=settings)
    with monkeypatch.context() as patch:
        patch.setattr(Context, "_load", load)
        engine.load()
    engine.close()
    return sum("-head-" in name for name in seen)


def test_a_head_as_stored_is_loaded_once_and_without_a_trial_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "llama", kind="F32")
    assert _loads(path, monkeypatch) == 2
    monkeypatch.delenv(SWITCH)
    assert [_loads(path, monkeypatch) for _ in range(2)] == [1, 1]
    (mark,) = (tmp_path / "cache" / "slices").glob("*-head-*.tried-*")
    # What an older version left does not say which file was tried.
    mark.write_bytes(b"as stored")
    told = mark.read_bytes()
    assert _loads(path, monkeypatch) == 1
    assert mark.read_bytes() != told
