"""Streams to rounds and tokens back, against a model of what every stage of a ring checks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink.errors import ConfigError
from stagelink.request import scheduler as scheduler_module
from stagelink.request.round import (
    CANCEL,
    CLOSE,
    CONTINUE,
    OPEN,
    RETURN_LAST,
    RETURN_NONE,
    Round,
)
from stagelink.request.sampling import Sampling
from stagelink.request.scheduler import Drawn, Scheduler
from stagelink.request.stops import Limits

if TYPE_CHECKING:
    from stagelink.request.stream import Stream

GREEDY = Sampling()


class StageModel:
    """The rules of docs/protocol.md 6.7 that a stage keeps from round to round."""

    def __init__(self, streams_max: int, rows_max: int, context: int) -> None:
        self.streams_max, self.rows_max, self.context = streams_max, rows_max, context
        self.open: dict[int, tuple[int, int]] = {}
        self.last_opened = 0
        self.fed: dict[int, list[int]] = {}

    def admit(self, one: Round) -> None:
        ids = [entry.id for entry in one.entries]
        assert ids == sorted(set(ids))
        assert 0 < len(ids) <= self.streams_max
        assert one.rows_total == sum(entry.rows for entry in one.entries) <= self.rows_max
        at = 0
        for entry in one.entries:
            assert entry.generation == 0
            if entry.op in (CLOSE, CANCEL):
                assert (entry.rows, entry.accepted, entry.returns) == (0, 0, RETURN_NONE)
                del self.open[entry.id]
                continue
            assert entry.rows >= 1
            assert entry.first + entry.rows <= self.context
            if entry.op == OPEN:
                assert entry.id > self.last_opened
                assert (entry.first, entry.accepted) == (0, 0)
                assert len(self.open) < self.streams_max
                self.last_opened = entry.id
                self.fed[entry.id] = []
            else:
                first, rows = self.open[entry.id]
                assert entry.op == CONTINUE
                assert entry.accepted == rows
                assert entry.first == first + rows
            self.open[entry.id] = (entry.first, entry.rows)
            self.fed[entry.id] += one.token_ids[at : at + entry.rows]
            at += entry.rows


@dataclasses.dataclass
class Rig:
    """A scheduler, the stage it talks to, and tokens that count up."""

    streams_max: int = 2
    rows_max: int = 8
    chunk_rows: int = 4
    context: int = 64

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            streams_max=self.streams_max, rows_max=self.rows_max, chunk_rows=self.chunk_rows
        )
        self.stage = StageModel(self.streams_max, self.rows_max, self.context)
        self.next_token = 1000

    def admit(self, rows: int, max_tokens: int = 3) -> Stream:
        limits = Limits(max_tokens, self.context)
        return self.scheduler.admit(range(rows), GREEDY, limits)

    def step(self) -> tuple[Round, list[Drawn]]:
        wanted = self.scheduler.next_round()
        assert wanted is not None
        self.stage.admit(wanted)
        tokens = [self.next_token + index for index in range(len(wanted.drawing))]
        self.next_token += len(tokens)
        return wanted, self.scheduler.commit(wanted, tokens)

    def finish(self) -> list[Round]:
        rounds = []
        while not self.scheduler.is_idle:
            rounds.append(self.step()[0])
        return rounds


def test_a_prompt_goes_chunk_by_chunk_and_only_its_last_row_returns() -> None:
    rig = Rig()
    rig.admit(10)
    entries = [rig.step()[0].entries[0] for _ in range(3)]
    assert [(entry.op, entry.first, entry.rows, entry.returns) for entry in entries] == [
        (OPEN, 0, 4, RETURN_NONE),
        (CONTINUE, 4, 4, RETURN_NONE),
        (CONTINUE, 8, 2, RETURN_LAST),
    ]


def test_a_stream_ends_after_its_tokens_and_the_last_one_is_never_fed() -> None:
    rig = Rig()
    stream = rig.admit(3, max_tokens=3)
    rig.finish()
    assert stream.generated == [1000, 1001, 1002]
    assert stream.outcome == "length"
    assert rig.stage.fed[stream.id] == [0, 1, 2, 1000, 1001]
    assert rig.stage.open == {}


def test_a_prompt_that_fills_the_context_gets_one_token() -> None:
    rig = Rig(context=8)
    stream = rig.admit(8, max_tokens=5)
    rig.finish()
    assert (stream.generated, stream.outcome) == ([1000], "length")


def test_a_close_without_company_is_a_round_without_rows() -> None:
    rig = Rig()
    rig.admit(3, max_tokens=1)
    closing = rig.finish()[-1]
    assert [entry.op for entry in closing.entries] == [CLOSE]
    assert closing.rows_total == 0


def test_a_close_rides_with_the_next_rows() -> None:
    rig = Rig()
    rig.admit(3, max_tokens=1)
    rig.admit(3, max_tokens=2)
    rounds = [[(entry.id, entry.op) for entry in one.entries] for one in rig.finish()]
    assert rounds == [[(1, OPEN)], [(1, CLOSE), (2, OPEN)], [(2, CONTINUE)], [(2, CLOSE)]]


def test_with_one_slot_the_close_goes_before_the_next_open() -> None:
    rig = Rig(streams_max=1)
    rig.admit(3, max_tokens=1)
    rig.admit(3, max_tokens=1)
    ops = [[entry.op for entry in one.entries] for one in rig.finish()]
    assert ops == [[OPEN], [CLOSE], [OPEN], [CLOSE]]


def test_decoding_streams_share_a_round_and_prompts_alternate_with_it() -> None:
    rig = Rig(streams_max=3)
    rig.admit(2, max_tokens=9)
    rig.admit(2, max_tokens=9)
    for _ in range(3):
        rig.step()
    rig.admit(8, max_tokens=9)
    rounds = [[(entry.id, entry.rows) for entry in rig.step()[0].entries] for _ in range(5)]
    decode, everyone = [(1, 1), (2, 1)], [(1, 1), (2, 1), (3, 1)]
    assert rounds == [decode, [(3, 4)], decode, [(3, 4)], everyone]


def test_a_prompt_chunk_is_cut_the_same_whatever_else_runs() -> None:
    alone, busy = Rig(streams_max=3), Rig(streams_max=3)
    alone.admit(11)
    for rows in (3, 5):
        busy.admit(rows, max_tokens=20)
    watched = busy.admit(11)

    def chunks(rig: Rig, stream_id: int) -> list[tuple[int, int]]:
        entries = [entry for one in rig.finish() for entry in one.entries]
        return [(one.first, one.rows) for one in entries if one.id == stream_id and one.first < 11]

    assert chunks(alone, 1) == chunks(busy, watched.id)


def test_a_cancelled_stream_is_told_to_the_stages_and_draws_nothing_more() -> None:
    rig = Rig()
    stream = rig.admit(3, max_tokens=9)
    rig.step()
    rig.scheduler.cancel(stream)
    wanted, drawn = rig.step()
    assert [entry.op for entry in wanted.entries] == [CANCEL]
    assert (drawn, stream.generated, stream.outcome) == ([], [1000], "cancelled")
    assert rig.scheduler.is_idle


def test_a_stream_cancelled_before_its_first_round_is_never_sent() -> None:
    rig = Rig(streams_max=1)
    rig.admit(3, max_tokens=1)
    waiting = rig.admit(3)
    rig.scheduler.cancel(waiting)
    rig.finish()
    assert waiting.id not in rig.stage.fed


def test_cancelling_an_ended_stream_changes_nothing() -> None:
    rig = Rig()
    stream = rig.admit(3, max_tokens=1)
    rig.finish()
    rig.scheduler.cancel(stream)
    assert stream.outcome == "length"
    assert rig.scheduler.is_idle


def test_asking_twice_for_the_next_round_gives_the_same() -> None:
    rig = Rig()
    rig.admit(9)
    rig.step()
    assert rig.scheduler.next_round() == rig.scheduler.next_round()


def test_an_idle_scheduler_has_no_round() -> None:
    assert Rig().scheduler.next_round() is None


def test_too_many_waiting_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "WAITING_MAX", 2)
    rig = Rig()
    rig.admit(1)
    rig.admit(1)
    with pytest.raises(ConfigError) as caught:
        rig.admit(1)
    assert caught.value.reason == "waiting"


@given(
    streams_max=st.integers(1, 4),
    rows_max=st.integers(4, 9),
    chunk_rows=st.integers(1, 9),
    script=st.lists(
        st.one_of(
            st.tuples(st.just("admit"), st.integers(1, 20), st.integers(1, 5)),
            st.tuples(st.just("step"), st.just(0), st.just(0)),
            st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
        ),
        max_size=40,
    ),
)
def test_every_sequence_of_rounds_keeps_the_protocols_rules(
    streams_max: int, rows_max: int, chunk_rows: int, script: list[tuple[str, int, int]]
) -> None:
    rig = Rig(streams_max=streams_max, rows_max=rows_max, chunk_rows=chunk_rows)
    streams: list[Stream] = []
    for what, first, second in script:
        if what == "admit":
            streams.append(rig.admit(first, max_tokens=second))
        elif what == "cancel" and first < len(streams):
            rig.scheduler.cancel(streams[first])
        elif what == "step" and not rig.scheduler.is_idle:
            rig.step()
    rig.finish()
    assert rig.stage.open == {}
    for stream in streams:
        assert stream.outcome is not None
        if stream.outcome == "length":
            fed = rig.stage.fed[stream.id]
            assert fed == [*stream.prompt_ids, *stream.generated[:-1]]
