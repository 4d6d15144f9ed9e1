"""The two loops on a real link in one process, with an engine that counts instead of computing."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink._native import Description, Listener
from stagelink.cli.keygen import write_key
from stagelink.config import LinkConfig, Task
from stagelink.engine import (
    CANCEL,
    OPEN,
    EngineDescription,
    EngineError,
    EngineSettings,
    PlanLike,
)
from stagelink.errors import ConfigError, StagelinkError
from stagelink.node.answer import Answer, answer
from stagelink.node.follow import follow
from stagelink.node.lead import Lead
from stagelink.node.rows import BoundaryRows
from stagelink.request.sampling import Sampling
from stagelink.request.stops import Limits
from stagelink.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WIDTH, VOCAB, LAYERS = 4, 50, 6
SETTINGS = EngineSettings(context=40, streams_max=3, rows_max=8, chunk_rows=4)
DESCRIBED = EngineDescription(
    backend="counting",
    device="none",
    row_dtype="float32",
    kv_dtype="float32",
    width=WIDTH,
    planes=1,
    kv_rows=120,
    states=3,
    batch_invariant=True,
    weight_bytes=1,
)


@dataclasses.dataclass
class Counting:
    """Adds one to a row's first value for every layer; the next token is the sum."""

    layers: int
    fails_at: int | None = None
    error: type[Exception] = EngineError
    reads_token_ids: bool = False
    rounds: int = 0
    ops: list[tuple[int, ...]] = dataclasses.field(default_factory=list)

    def run(self, plan: PlanLike, rows_in: np.ndarray, rows_out: np.ndarray) -> None:
        self.rounds += 1
        self.ops.append(tuple(plan.ops))
        if self.rounds == self.fails_at:
            raise self.error("a wheel came off")
        rows_out[:] = rows_in
        rows_out.view(np.float32).reshape(-1, WIDTH)[:, 0] += self.layers
        if self.reads_token_ids and plan.rows_total:
            # As a layer with embeddings of its own, or experts chosen by token: id by id.
            assert plan.token_ids is not None
            rows_out.view(np.float32).reshape(-1, WIDTH)[:, 0] += plan.token_ids

    def run_first(self, plan: PlanLike, token_ids: np.ndarray, rows_out: np.ndarray) -> None:
        rows = np.zeros((len(token_ids), WIDTH), dtype=np.float32)
        rows[:, 0] = token_ids
        self.run(plan, rows.view(np.uint8).reshape(-1), rows_out)

    def run_head(self, rows_in: np.ndarray, rows: int) -> np.ndarray:
        values = rows_in.view(np.float32).reshape(rows, WIDTH)[:, 0].astype(int)
        logits = np.zeros((rows, VOCAB), dtype=np.float32)
        logits[np.arange(rows), values % VOCAB] = 1
        return logits


class InProcessRing:
    """Two stages: rank 0 in the test's thread, rank 1 in another."""

    def __init__(self, folder: Path, *, token_ids: bool = False, **follower: Any) -> None:
        self.key = folder / "key"
        write_key(self.key)
        self.listeners = [Listener("127.0.0.1:0") for _ in range(2)]
        self.lead_address = self.listeners[0].address
        self.engines = [Counting(2), Counting(4, **follower)]
        self.token_ids = token_ids
        self.pool = concurrent.futures.ThreadPoolExecutor(1)

    def _join(self, rank: int) -> Ring:
        description = Description(
            rank=rank, world=2, first=(0, 2)[rank], end=(2, 6)[rank], layers=LAYERS, width=WIDTH,
            planes=1, row_dtype="float32", kv_dtype="float32", chunk_rows=SETTINGS.chunk_rows,
            rows_max=SETTINGS.rows_max, streams_max=SETTINGS.streams_max, context=SETTINGS.context,
            states=3, kv_rows=120, weight_bytes=1, engine_version="1", backend="counting",
            device="none", host=f"host-{rank}", token_ids=self.token_ids,
        )  # fmt: skip
        link = LinkConfig(
            rank, "", None if rank == 0 else self.lead_address, str(self.key), join_seconds=10
        )
        return Ring.join(link, self.listeners[rank], description, [bytes(32)] * 8)

    def _follow(self) -> None:
        rows = BoundaryRows(DESCRIBED, SETTINGS.rows_max)
        with self._join(1) as ring:
            ring.ready(load_ms=1, bytes_held=1, bytes_read=1, seconds=10)
            engine: Any = self.engines[1]
            follow(engine, ring, rows, is_last=True, busy_seconds=5)

    def run(self, work: Callable[[Lead], Any]) -> Any:
        """Do ``work`` on an open ring; the follower's error is raised where rank 0 had none."""
        self.followed = self.pool.submit(self._follow)
        rows = BoundaryRows(DESCRIBED, SETTINGS.rows_max)
        with self._join(0) as ring:
            ring.ready(load_ms=1, bytes_held=1, bytes_read=1, seconds=10)
            lead = Lead(
                self.engines[0], ring, rows, SETTINGS, vocab=VOCAB,  # type: ignore[arg-type]
                decode=lambda ids: "".join(chr(97 + one % 26) for one in ids),
                needs_token_ids=self.engines[1].reads_token_ids,
            )  # fmt: skip
            done = work(lead)
        self.followed.result(10)
        return done

    def errors(self, work: Callable[[Lead], Any]) -> tuple[StagelinkError, StagelinkError]:
        """What rank 0 and rank 1 raised."""
        with pytest.raises(StagelinkError) as lead:
            self.run(work)
        error = self.followed.exception(10)
        assert isinstance(error, StagelinkError)
        return lead.value, error


def _expected(prompt: list[int], count: int) -> list[int]:
    return [(prompt[-1] + LAYERS * (1 + index)) % VOCAB for index in range(count)]


def test_tokens_come_round_the_ring(tmp_path: Path) -> None:
    prompt = list(range(9))

    def work(lead: Lead) -> list[Any]:
        return list(lead.generate(prompt, Sampling(), Limits(5, 40)))

    events = InProcessRing(tmp_path).run(work)
    assert [event.token_id for event in events] == _expected(prompt, 5)
    assert [event.outcome for event in events] == [None] * 4 + ["length"]
    assert "".join(event.text for event in events) == "".join(
        chr(97 + one % 26) for one in _expected(prompt, 5)
    )


def test_several_streams_share_rounds_and_each_gets_its_own_tokens(tmp_path: Path) -> None:
    prompts = [[3], [1, 2, 3, 4, 5, 6], [9, 8], [7] * 10, [2]]

    def work(lead: Lead) -> list[list[int]]:
        streams = [lead.submit(one, Sampling(), Limits(8, 40)) for one in prompts]
        lead.drain()
        return [stream.generated for stream in streams]

    ring = InProcessRing(tmp_path)
    assert ring.run(work) == [_expected(prompt, 8) for prompt in prompts]
    assert ring.engines[0].ops == ring.engines[1].ops
    assert max(len(ops) for ops in ring.engines[0].ops) == 3


def test_a_stage_whose_layers_read_token_ids_gets_them_with_the_plan(tmp_path: Path) -> None:
    def work(lead: Lead) -> list[list[int]]:
        prompts = [[3, 1, 4], [1, 2, 3, 4, 5, 6, 7]]
        streams = [lead.submit(one, Sampling(), Limits(4, 40)) for one in prompts]
        lead.drain()
        return [stream.generated for stream in streams]

    def counted(token: int) -> list[int]:
        tokens = [(2 * token + LAYERS) % VOCAB]
        while len(tokens) < 4:
            tokens.append((2 * tokens[-1] + LAYERS) % VOCAB)
        return tokens

    ring = InProcessRing(tmp_path, token_ids=True, reads_token_ids=True)
    assert ring.run(work) == [counted(4), counted(7)]


def test_token_ids_are_not_sent_to_a_stage_that_did_not_say_it_reads_them(tmp_path: Path) -> None:
    def work(lead: Lead) -> None:
        list(lead.generate([1, 2], Sampling(), Limits(2, 40)))

    lead, _ = InProcessRing(tmp_path, reads_token_ids=True).errors(work)
    assert lead.reason == "unsupported_block"


def test_an_answer_that_is_left_early_is_cancelled_on_every_stage(tmp_path: Path) -> None:
    def work(lead: Lead) -> None:
        for _ in lead.generate([1], Sampling(), Limits(30, 40)):
            break
        lead.drain()

    ring = InProcessRing(tmp_path)
    ring.run(work)
    assert ring.engines[1].ops == [(1,), (4,)]


@pytest.mark.parametrize("error", [EngineError, ZeroDivisionError, MemoryError])
def test_an_engine_that_fails_is_named_on_every_rank(
    tmp_path: Path, error: type[Exception]
) -> None:
    def work(lead: Lead) -> None:
        list(lead.generate([1, 2], Sampling(), Limits(9, 40)))

    ring = InProcessRing(tmp_path, fails_at=3, error=error)
    lead, follower = ring.errors(work)
    assert isinstance(lead, EngineError)
    assert (lead.reason, lead.rank) == ("engine", 1)
    assert "rank 1 (host-1" in str(lead)
    assert "a wheel came off" in str(lead)
    assert isinstance(follower, EngineError)


def test_a_prompt_that_cannot_run_is_refused_and_the_ring_goes_on(tmp_path: Path) -> None:
    def work(lead: Lead) -> list[int]:
        with pytest.raises(ConfigError):
            lead.submit([1] * 41, Sampling(), Limits(1, 40))
        with pytest.raises(ConfigError):
            lead.submit([VOCAB], Sampling(), Limits(1, 40))
        return [event.token_id for event in lead.generate([1], Sampling(), Limits(1, 40))]

    assert InProcessRing(tmp_path).run(work) == _expected([1], 1)


def test_the_times_of_both_loops_add_up(tmp_path: Path) -> None:
    def work(lead: Lead) -> Any:
        list(lead.generate([1] * 6, Sampling(), Limits(3, 40)))
        return lead.times

    times = InProcessRing(tmp_path).run(work)
    assert (times.rounds, times.rows) == (4, 8)
    assert times.compute_seconds > 0
    assert times.wait_seconds > 0


def test_an_answer_that_is_cancelled_ends_between_two_chunks_of_its_prompt(tmp_path: Path) -> None:
    ring = InProcessRing(tmp_path)
    asked = iter([False, True])

    def work(lead: Lead) -> Answer:
        return answer(
            lead, list(range(30)), Task(), Limits(5, 40), emit=str, is_cancelled=lambda: next(asked)
        )

    done = ring.run(work)
    assert (done.token_ids, done.finish_reason) == ([], "cancelled")
    # One chunk of four rows, and the round that tells the stages.
    assert ring.engines[1].ops == [(OPEN,), (CANCEL,)]


class Telling(Counting):
    """Prepares, and notes when, beside what its stage tells the ring."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.heard: list[str] = []

    def prepare(self, plan: PlanLike) -> None:
        assert plan.rows_total
        self.heard.append("prepare")

    def run(self, plan: PlanLike, rows_in: np.ndarray, rows_out: np.ndarray) -> None:
        self.heard.append("run")
        super().run(plan, rows_in, rows_out)


class ToldRing(InProcessRing):
    """Whose follower's engine is `Telling`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.telling = Telling(4)
        self.engines[1] = self.telling

    def _join(self, rank: int) -> Ring:
        ring = super()._join(rank)
        if rank == 1:
            progress: Any = ring.progress

            def tell(phase: str, **told: Any) -> None:
                self.telling.heard.append(phase)
                progress(phase, **told)

            ring.progress = tell  # type: ignore[method-assign]
        return ring


def _two_tokens(lead: Lead) -> list[Any]:
    """Draw two tokens, and end without a round that closes the stream."""
    stream = lead.submit([1], Sampling(), Limits(3, 40))
    events: list[Any] = []
    while len(stream.generated) < 2:
        events += lead.step()
    return events


def test_a_plan_is_prepared_before_its_rows_are_waited_for_and_the_ring_sees_it(
    tmp_path: Path,
) -> None:
    ring = ToldRing(tmp_path)
    tokens = ring.run(lambda lead: [one.token_id for one in _two_tokens(lead)])
    assert tokens == _expected([1], 2)
    one = ["computing", "prepare", "idle", "computing", "run", "sending", "idle"]
    assert ring.telling.heard == one * 2
