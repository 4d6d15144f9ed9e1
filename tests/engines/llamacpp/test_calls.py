"""Rows of many streams in calls that are no larger than one may be, with the bits of one call.

Chunks of one stream are in test_engine_architectures.py.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.native_chain import rule_for
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.gguf_source import read_source
from stagelink.engine import CONTINUE, OPEN
from stagelink_conformance.pipeline import rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_llamacpp import context
from stagelink_llamacpp.rounds import SlotPiece, _divided

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_llamacpp import LlamaCppEngine

_STREAMS, _ROUNDS = 9, 2
_MOST = 2 * context.CALL_ROWS - 1


def _rows(engine: LlamaCppEngine, each: int, width: int, streams: int = _STREAMS) -> bytes:
    """Run rounds of every stream with as many rows, and return the rows of the last one."""
    count = streams * each
    given = np.random.default_rng(0).standard_normal((_ROUNDS, count, width), np.float32)
    rows = rows_buffer(count * width * 4)
    for at in range(_ROUNDS):
        rows.view(np.float32)[:] = given[at].ravel()
        op = CONTINUE if at else OPEN
        entries = [Entry(one, op, at * each, each) for one in range(streams)]
        engine.run(RoundPlan.of(*entries), rows, rows)
    return rows.tobytes()


@pytest.mark.parametrize("each", [17, 18, 20])
@pytest.mark.parametrize("made", ["llama Q4_0", "gemma3 Q8_0", "qwen3moe Q4_0", "phi3 F32"])
def test_rows_of_many_streams_have_the_bits_of_one_call(
    made: str,
    each: int,
    tmp_path: Path,
    stage: Callable[..., LlamaCppEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, kind = made.split()
    path = make_gguf(tmp_path, name, kind=kind)
    layers = rule_for(read_source(path)).layers
    asked = {"streams_max": _STREAMS, "context": 64}
    width = read_source(path).values[f"{name}.embedding_length"]
    divided = _rows(stage(path, 0, layers, **asked), each, width)
    with monkeypatch.context() as patch:
        patch.setattr(context, "CALL_ROWS", 4 * context.CALL_ROWS)
        whole = stage(path, 0, layers, **asked)
    assert divided == _rows(whole, each, width)


@pytest.mark.parametrize(("streams", "each"), [(249, 1), (126, 2), (42, 3)])
def test_few_rows_that_are_left_have_the_bits_of_one_call(
    streams: int,
    each: int,
    tmp_path: Path,
    stage: Callable[..., LlamaCppEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # llama.cpp multiplies a single row of floats in another way than rows that are several.
    path = make_gguf(tmp_path, "llama", kind="F32")
    asked = {"streams_max": streams, "context": 16}
    width = read_source(path).values["llama.embedding_length"]
    divided = _rows(stage(path, 0, 3, **asked), each, width, streams)
    with monkeypatch.context() as patch:
        patch.setattr(context, "CALL_ROWS", 4 * context.CALL_ROWS)
        whole = stage(path, 0, 3, **asked)
    assert divided == _rows(whole, each, width, streams)


@pytest.mark.parametrize(
    ("pieces", "each", "calls"),
    [
        (127, 1, [127]),
        (130, 1, [124, 6]),
        (128, 1, [124, 4]),
        (249, 1, [124, 120, 5]),
        (251, 1, [124, 120, 7]),
        (63, 2, [63]),
        (64, 2, [62, 2]),
        (125, 2, [62, 60, 3]),
        (41, 3, [41]),
        (45, 3, [40, 5]),
        (81, 3, [40, 36, 5]),
        (9, 17, [4, 4, 1]),
        (5, 34, [2, 2, 1]),
        (3, 64, [1, 1, 1]),
        (3, 33, [3]),
        (4, 33, [1, 1, 1, 1]),
    ],
)
def test_a_call_of_many_streams_is_divided_where_the_rows_of_a_multiple_end(
    pieces: int, each: int, calls: list[int]
) -> None:
    bounds = itertools.pairwise(range(0, (pieces + 1) * each, each))
    call = tuple(SlotPiece(slot, 0, *span) for slot, span in enumerate(bounds))
    parts = list(_divided(call, _MOST))
    assert [len(part) for part in parts] == calls
    assert tuple(itertools.chain(*parts)) == call
