"""Promises against a confused or hostile lead: what it sends harms no stream but its own.

States that are not this stage's, rows that are no numbers, slots that run out, ends in the middle.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, ConfigError
from stagelink_conformance.bystanders import (
    HELD,
    assert_plan_refused,
    assert_refused,
    assert_unchanged,
    busy,
)
from stagelink_conformance.pipeline import row_bytes, rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan, told
from stagelink_conformance.scripts import chunked, step
from stagelink_conformance.stages import (
    Stages,
    assert_same_bits,
    assert_same_bytes,
    keep,
    save,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from stagelink.engine import StageEngine

NOT_TAKEN = ("state_format", "state_damaged")
_AFTER_NO_NUMBERS = "rows that follow where rows that are no numbers ended or were cut off"
# Infinity in the two ways in which a row's values are stored; all ones is no number in any dtype.
_INFINITY = {"float32": b"\0\0\x80\x7f", "bfloat16": b"\x80\x7f", "float16": b"\0\x7c"}
# Bytes of a checkpoint that a test copies at most.
_COPIED_MAX = 64 << 20


def _states(stages: Stages) -> list[bytes]:
    """Save a stream of 21 positions on every stage."""
    pipeline = stages.halves()
    pipeline.play(chunked(1, stages.ids(9, 21), 8))
    return [save(engine, 1) for engine in pipeline.engines]


def _damaged(state: bytes) -> list[bytes]:
    """Return what may become of a state on a disk or a wire."""
    size = len(state)
    rng = np.random.default_rng(size)
    bad = [state[:cut] for cut in (0, 1, 4, 16, 63, 64, 65, size // 3, size // 2, size - 1)]
    bad += [state + b"\0", state + state, state[1:], bytes(size), b"\xff" * size, rng.bytes(size)]
    # Every byte of what may be a header (and with it every length in it), and some of the rest.
    for at in (*range(min(64, size)), *rng.integers(0, size, 24).tolist(), size - 1):
        flipped = bytearray(state)
        flipped[at] ^= 1 << (at % 8)
        bad.append(bytes(flipped))
    for at in range(0, min(64, size - 8), 4):
        bad.append(state[:at] + b"\xff" * 8 + state[at + 8 :])
    return bad


def test_no_damaged_state_is_taken_and_none_takes_a_slot(stages: Stages) -> None:
    states, pipeline = _states(stages), busy(stages)
    for engine, state in zip(pipeline.engines, states, strict=True):
        for bad in _damaged(state):
            assert_refused(NOT_TAKEN, lambda: engine.restore(8, bad))  # noqa: B023 - now
        engine.restore(8, state)
    pipeline.play([step(Entry(8, CLOSE), ids=[])])
    assert_unchanged(stages, pipeline)


def test_a_state_of_other_layers_is_refused(stages: Stages) -> None:
    states, pipeline = _states(stages), busy(stages)
    if len(states) == 1:
        pytest.skip("the model has one layer")
    for engine, state in zip(pipeline.engines, reversed(states), strict=True):
        assert_refused("state_format", lambda: engine.restore(8, state))  # noqa: B023 - now
    assert_unchanged(stages, pipeline)


def test_a_state_of_other_weights_is_refused(stages: Stages, tmp_path: Path) -> None:
    files = sorted(stages.model.rglob("*")) if stages.model.is_dir() else [stages.model]
    if sum(file.stat().st_size for file in files) > _COPIED_MAX:
        pytest.skip("the checkpoint is too large to copy")
    other = tmp_path / stages.model.name
    copy = shutil.copytree if stages.model.is_dir() else shutil.copy
    copy(stages.model, other)
    weights = max((other.rglob("*") if other.is_dir() else [other]), key=lambda f: f.stat().st_size)
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    changed = Stages(stages.engine, other, stages.settings)
    try:
        states = _states(changed)
    finally:
        changed.close()
    pipeline = busy(stages)
    for engine, state in zip(pipeline.engines, states, strict=True):
        assert_refused("state_format", lambda: engine.restore(8, state))  # noqa: B023 - now
    assert_unchanged(stages, pipeline)


def test_a_state_is_not_restored_over_an_open_stream(stages: Stages) -> None:
    states, pipeline = _states(stages), busy(stages)
    for engine, state in zip(pipeline.engines, states, strict=True):
        assert_refused("stream_reused", lambda: engine.restore(2, state))  # noqa: B023 - now
    assert_unchanged(stages, pipeline)


def test_restored_states_take_slots_until_none_is_left(stages: Stages) -> None:
    states, pipeline = _states(stages), busy(stages)
    for engine, state in zip(pipeline.engines, states, strict=True):
        for stream in range(10, 10 + stages.settings.streams_max - 3):
            engine.restore(stream, state)
        assert_refused("streams_full", lambda: engine.restore(99, state))  # noqa: B023 - now
        assert_refused("unknown_stream", lambda: engine.save(99))  # noqa: B023 - now
    plan = RoundPlan.of(Entry(1, CONTINUE, HELD, 1), Entry(99, OPEN, 0, 1))
    assert_plan_refused(stages, pipeline, plan, "streams_full")
    pipeline.play([step(Entry(10, CANCEL), ids=[])])
    assert_unchanged(stages, pipeline)


def test_a_stage_that_is_not_ready_refuses_every_call(stages: Stages) -> None:
    layers = stages.family.layers
    raw, closed = stages.make(0, layers, lead=True), stages.load(0, layers, lead=True)
    closed.close()
    plan, ids = RoundPlan.of(Entry(1, OPEN, 0, 1)), np.zeros(1, dtype=np.int64)
    size = row_bytes(raw.describe())
    for engine in (raw, closed):
        for call in (
            lambda: engine.run(plan, rows_buffer(size), rows_buffer(size)),  # noqa: B023 - now
            lambda: engine.run_first(plan, ids, rows_buffer(size)),  # noqa: B023 - now
            lambda: engine.run_head(rows_buffer(size), 1),  # noqa: B023 - now
            lambda: engine.keep(1, 0),  # noqa: B023 - now
            lambda: engine.save(1),  # noqa: B023 - now
            lambda: engine.restore(1, b""),  # noqa: B023 - now
            lambda: engine.warm(),  # noqa: B023, PLW0108 - now
        ):
            assert_refused("engine_state", call)
        engine.close()


def test_a_prompt_that_is_cancelled_in_the_middle_leaves_nothing(stages: Stages) -> None:
    pipeline, plain = stages.halves(), stages.halves()
    first, other = stages.ids(20, 48), stages.ids(21, 40)
    for one in (pipeline, plain):
        one.play(chunked(2, stages.ids(22, 12), 12))
    pipeline.play(chunked(1, first, 16)[:2])
    pipeline.play([step(Entry(1, CANCEL), Entry(2, CONTINUE, 12, 1), ids=[5])])
    plain.play([step(Entry(2, CONTINUE, 12, 1), ids=[5])])
    tail = chunked(1, other, 16) + chunked(2, stages.ids(23, 3), 1, at=13)
    assert_same_bits(pipeline.play(tail), plain.play(tail))


def test_a_round_that_is_cut_at_every_row_equals_rounds_of_single_rows(stages: Stages) -> None:
    whole, split = stages.whole(), stages.halves()
    ids, prompt = stages.ids(24, 9), stages.ids(25, 7)
    for one in (whole, split):
        one.play(chunked(1, prompt, 7) + chunked(2, prompt, 7))
    entries = (Entry(1, CONTINUE, 7, 1), Entry(2, CONTINUE, 5, 3), Entry(3, OPEN, 0, 5))
    got = split.play([step(*entries, ids=ids, cuts=range(1, 9))])[0]
    rounds = chunked(1, ids[:1], 1, at=7) + chunked(2, ids[1:4], 1, at=5) + chunked(3, ids[4:], 1)
    expected = np.concatenate([one.rows for one in whole.play(rounds)], axis=1)
    assert_same_bytes(got.rows, expected, "a round cut at every row and rounds of single rows")


@pytest.fixture(params=[False, True], ids=["usual", "invariant"])
def twins(stages: Stages, request: pytest.FixtureRequest) -> tuple[StageEngine, StageEngine]:
    """Return the layers behind the first cut, twice: a stage that gets its rows from a peer."""
    cuts, invariant = stages.family.allowed_cuts(), request.param
    if not cuts:
        pytest.skip("the model is not cut")
    try:
        one, other = (
            stages.load(cuts[0], stages.family.layers, lead=False, batch_invariant=invariant)
            for _ in range(2)
        )
    except ConfigError as error:
        if invariant and error.reason == "engine_invariance":
            pytest.skip(str(error))
        raise
    return one, other


def _rows(engine: StageEngine, count: int, seed: int) -> npt.NDArray[np.uint8]:
    """Draw rows of small numbers, ``[planes, count, bytes]``: what a lead's layers may send."""
    described = engine.describe()
    shape = (described.planes, count, described.width)
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    if described.row_dtype == "float16":
        return values.astype(np.float16).view(np.uint8)
    words = values.view("<u4") if described.row_dtype == "float32" else values.view("<u4") >> 16
    kept = words.astype("<u4" if described.row_dtype == "float32" else "<u2")
    return kept.view(np.uint8).reshape(*shape[:2], -1)


def _no_numbers(engine: StageEngine, count: int) -> npt.NDArray[np.uint8]:
    """Return rows of not-a-number and infinity by turns."""
    infinity = np.frombuffer(_INFINITY[engine.describe().row_dtype], np.uint8)
    rows = _rows(engine, count, 0)
    rows[:, 0::2] = 0xFF
    rows[:, 1::2] = np.resize(infinity, rows.shape[2])
    return rows


def _run(
    engine: StageEngine, plan: RoundPlan, *parts: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Run a round over the rows of its entries; return rows in the same shape."""
    rows = np.concatenate(parts, axis=1)
    rows_in, rows_out = rows_buffer(rows.size), rows_buffer(rows.size)
    rows_in[...] = rows.reshape(-1)
    engine.run(told(plan), rows_in, rows_out)
    return rows_out.reshape(rows.shape)


def test_rows_that_are_no_numbers_stay_in_their_stream(
    twins: tuple[StageEngine, StageEngine],
) -> None:
    follower, plain = twins
    entries = (Entry(1, OPEN, 0, 4), Entry(2, OPEN, 0, 6), Entry(3, OPEN, 0, 4))
    # Every stream is a batch of its own, so that all have the same composition in both.
    plan = RoundPlan.of(*entries, cuts=[4, 10])
    one, other = _rows(follower, 4, 1), _rows(follower, 4, 2)
    _run(follower, plan, one, _no_numbers(follower, 6), other)
    _run(plain, plan, one, _rows(plain, 6, 3), other)
    assert_same_bytes(_later(follower), _later(plain), "streams beside rows that are no numbers")
    for engine in (follower, plain):
        _run(engine, RoundPlan.of(Entry(2, CANCEL)), one[:, :0])
    # The slot that held them serves a stream to which they must not be seen.
    again = RoundPlan.of(Entry(4, OPEN, 0, 3)), _rows(follower, 3, 4)
    assert_same_bytes(_run(follower, *again), _run(plain, *again), _AFTER_NO_NUMBERS)
    next_row = RoundPlan.of(Entry(4, CONTINUE, 3, 1)), _rows(follower, 1, 5)
    assert_same_bytes(_run(follower, *next_row), _run(plain, *next_row), _AFTER_NO_NUMBERS)


def _later(engine: StageEngine) -> npt.NDArray[np.uint8]:
    """Run single rows of streams 1 and 3, each a batch, and return what came out."""
    plan = RoundPlan.of(Entry(1, CONTINUE, 4, 1), Entry(3, CONTINUE, 4, 1), cuts=[1])
    return _run(engine, plan, _rows(engine, 2, 6))


def test_neighbours_of_rows_that_are_no_numbers_have_numbers(
    twins: tuple[StageEngine, StageEngine],
) -> None:
    follower, _ = twins
    width = follower.describe().width
    plan = RoundPlan.of(Entry(1, OPEN, 0, 3), Entry(2, OPEN, 0, 5), Entry(3, OPEN, 0, 3))
    parts = _rows(follower, 3, 1), _no_numbers(follower, 5), _rows(follower, 3, 2)
    out = _run(follower, plan, *parts)
    mine = np.concatenate([out[:, :3], out[:, 8:]], axis=1)
    # A value's last byte has seven or five of the exponent's bits; all of them are set in infinity
    # and in what is no number, and in nothing that a tiny model computes.
    exponent = 0x7C if follower.describe().row_dtype == "float16" else 0x7F
    last = mine.reshape(*mine.shape[:2], width, -1)[..., -1]
    assert not ((last & exponent) == exponent).any()


def test_rows_that_are_no_numbers_are_gone_when_they_are_cut_off(
    twins: tuple[StageEngine, StageEngine],
) -> None:
    follower, plain = twins
    prompt = RoundPlan.of(Entry(1, OPEN, 0, 10)), _rows(follower, 10, 7)
    for engine in (follower, plain):
        _run(engine, *prompt)
    _run(follower, RoundPlan.of(Entry(1, CONTINUE, 10, 6)), _no_numbers(follower, 6))
    keep(follower, 1, 10)
    for rows, at in ((1, 10), (5, 11)):
        tail = RoundPlan.of(Entry(1, CONTINUE, at, rows)), _rows(follower, rows, 8 + rows)
        assert_same_bytes(_run(follower, *tail), _run(plain, *tail), _AFTER_NO_NUMBERS)


def test_a_head_over_rows_that_are_no_numbers_gives_the_next_rows_the_same_bits(
    stages: Stages,
) -> None:
    pipeline = busy(stages)
    lead = pipeline.engines[0]
    rows = _rows(lead, 3, 11)
    before = pipeline.head(rows).tobytes()
    assert not np.isfinite(pipeline.head(_no_numbers(lead, 3))).all()
    assert pipeline.head(rows).tobytes() == before
    assert_unchanged(stages, pipeline)
