"""Prompts that end between two of their chunks: cut back, or cancelled.

What a ring that ends does to a chunk is in test_engine.py; random streams have a file of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.gguf_source import read_source
from stagelink.engine import CANCEL, CONTINUE, OPEN
from stagelink_conformance.pipeline import rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_llamacpp import LlamaCppEngine


@pytest.mark.parametrize("ended", ["cut back", "cancelled"])
@pytest.mark.parametrize("kv", ["float16", "q8_0"])
def test_a_prompt_that_ends_between_its_chunks_leaves_no_bit_behind(
    tmp_path: Path, stage: Callable[..., LlamaCppEngine], kv: str, ended: str
) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q4_0")
    width = read_source(path).values["llama.embedding_length"]
    drawn = np.random.default_rng(3).standard_normal((3, 100, width)).astype(np.float32)

    def chunk(engine: LlamaCppEngine, stream: int, at: int, number: int) -> bytes:
        rows = rows_buffer(drawn[number].nbytes)
        rows.view(np.float32)[:] = drawn[number].ravel()
        op = CONTINUE if at else OPEN
        engine.run(RoundPlan.of(Entry(stream, op, at, 100)), rows, rows)
        return rows.tobytes()

    expected, engine = stage(path, 0, 8, kv_dtype=kv), stage(path, 0, 8, kv_dtype=kv)
    neighbour = chunk(expected, 2, 0, 1)
    first, second = chunk(expected, 1, 0, 0), chunk(expected, 1, 100, 2)
    assert chunk(engine, 1, 0, 0) == first
    chunk(engine, 1, 100, 1)
    if ended == "cut back":
        engine.keep(1, 100)
        assert chunk(engine, 1, 100, 2) == second
        assert chunk(engine, 2, 0, 1) == neighbour
    else:
        assert chunk(engine, 2, 0, 1) == neighbour
        empty = rows_buffer(0)
        engine.run(RoundPlan.of(Entry(1, CANCEL)), empty, empty)
        # The slot of the one that was cancelled is given out first.
        assert chunk(engine, 3, 0, 0) == first
        assert chunk(engine, 3, 100, 2) == second
