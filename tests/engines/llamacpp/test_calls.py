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
from stagelink.engine import CLOSE, CONTINUE, OPEN
from stagelink_conformance.pipeline import rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_llamacpp import calls, context
from stagelink_llamacpp.calls import LEAN_ROWS_MIN, lean_rows, spans_of
from stagelink_llamacpp.rounds import SlotPiece, _divided, _lean

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


@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        (0, [(0, 0)]),
        (63, [(0, 63)]),
        (95, [(0, 95)]),
        (96, [(0, 64), (32, 96)]),
        (127, [(0, 64), (60, 127)]),
        (128, [(0, 64), (64, 128)]),
        (159, [(0, 64), (64, 159)]),
        (253, [(0, 64), (64, 128), (128, 192), (188, 253)]),
    ],
)
def test_the_last_call_of_a_wide_chunk_is_a_small_one_that_begins_among_computed_rows(
    rows: int, spans: list[tuple[int, int]]
) -> None:
    assert list(spans_of(rows, LEAN_ROWS_MIN)) == spans
    assert all(begin % 4 == 0 for begin, _ in spans)


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({}, 0),
        ({"embedding_length": 64, "feed_forward_length": ["a", None, -(1 << 40)]}, 0),
        ({"embedding_length": 2048, "feed_forward_length": 8192}, 0),
        ({"embedding_length": 3072, "feed_forward_length": [8192, 4096]}, 0),
        ({"embedding_length": 3200, "feed_forward_length": 8640}, 122),
        ({"embedding_length": 4096, "feed_forward_length": 14336}, LEAN_ROWS_MIN),
        (
            {
                "embedding_length": 2048,
                "expert_feed_forward_length": 2048,
                "expert_used_count": 8,
            },
            96,
        ),
    ],
)
def test_only_a_wide_model_has_small_calls(values: dict[str, object], rows: int) -> None:
    assert lean_rows(values) == rows


@pytest.mark.parametrize("made", ["llama Q4_0", "gemma3 Q8_0", "qwen3moe F32", "qwen35 Q4_0"])
def test_rows_that_are_computed_again_have_the_bits_of_one_call(
    made: str,
    tmp_path: Path,
    stage: Callable[..., LlamaCppEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, kind = made.split()
    path = make_gguf(tmp_path, name, kind=kind)
    layers = rule_for(read_source(path)).layers
    width = read_source(path).values[f"{name}.embedding_length"]
    whole = stage(path, 0, layers)
    monkeypatch.setattr(calls, "_BYTES", 1)
    lean = stage(path, 0, layers)
    seen = []
    run = context.Context._run

    def note(own: context.Context, rows: object, *others: object) -> None:
        seen.append(len(rows))
        run(own, rows, *others)

    monkeypatch.setattr(context.Context, "_run", note)
    for each in (97, 125, 127):
        expected = _rows(whole, each, width, 1)
        seen.clear()
        assert _rows(lean, each, width, 1) == expected
        assert max(seen) == (each if name == "qwen35" else 64 + each % 4)
        whole.run(RoundPlan.of(Entry(0, CLOSE)), *[rows_buffer(0)] * 2)
        lean.run(RoundPlan.of(Entry(0, CLOSE)), *[rows_buffer(0)] * 2)


@pytest.mark.parametrize(
    ("pieces", "each", "parts"),
    [
        (95, 1, [95]),
        (127, 1, [92, 35]),
        (2, 48, [1, 1]),
        (4, 25, [4]),
        (2, 62, [2]),
        (1, 127, [1]),
        (5, 20, [4, 1]),
    ],
)
def test_a_call_is_small_where_its_parts_keep_its_bits_and_else_left_as_it_is(
    pieces: int, each: int, parts: list[int]
) -> None:
    bounds = itertools.pairwise(range(0, (pieces + 1) * each, each))
    call = tuple(SlotPiece(slot, 0, *span) for slot, span in enumerate(bounds))
    assert [len(part) for part in _lean(call, LEAN_ROWS_MIN)] == parts
