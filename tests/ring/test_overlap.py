"""Prompt chunks that cross while others are computed: the same bytes, and several in flight."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink._native import ROW_LANE_BYTES, Description, Listener
from stagelink.cli.keygen import write_key
from stagelink.config import LinkConfig
from stagelink.engine import EngineDescription, EngineSettings, PlanLike
from stagelink.errors import EngineError, StagelinkError
from stagelink.node.follow import follow
from stagelink.node.lead import Lead
from stagelink.node.rows import ROW_LANE_BYTES as OWN_ROW_LANE_BYTES
from stagelink.node.rows import BoundaryRows
from stagelink.request.sampling import Sampling
from stagelink.request.stops import Limits
from stagelink.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ring.rig import Lab

CHUNK, VOCAB = 4, 97
# Three values of a row are looked at, the rest is there to make a chunk large or small.
LARGE, SMALL = 8192, 8


class Mixing:
    """Adds a hash of all rows so far to every row, so that a lost or doubled chunk shows."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.state = 1
        self.started: list[int] = []
        self.on_run: Callable[[int], None] = lambda _number: None

    def run(self, plan: PlanLike, rows_in: np.ndarray, rows_out: np.ndarray) -> None:
        self.on_run(len(self.started))
        self.started.append(int(plan.rows_total))
        rows_out[:] = rows_in
        rows = rows_out.view(np.float32).reshape(-1, self.width)
        for row in rows:
            self.state = (self.state * 48271 + int(row[0]) + 31 * int(row[-1])) % 2147483647
            row[0] = row[-1] = float(self.state % VOCAB)

    def run_first(self, plan: PlanLike, token_ids: np.ndarray, rows_out: np.ndarray) -> None:
        rows = np.repeat(np.asarray(token_ids, np.float32)[:, None], self.width, axis=1)
        self.run(plan, rows.view(np.uint8).reshape(-1), rows_out)

    def run_head(self, rows_in: np.ndarray, rows: int) -> np.ndarray:
        values = rows_in.view(np.float32).reshape(rows, self.width)[:, -1].astype(int)
        logits = np.zeros((rows, VOCAB), dtype=np.float32)
        logits[np.arange(rows), values] = 1
        return logits


class Rig:
    """Rings of threads: rank 0 in the test's own, the others in a pool."""

    def __init__(self, folder: Path, world: int, width: int, in_flight: int | None = None) -> None:
        self.world, self.width = world, width
        self.in_flight = in_flight or 2 * world
        self.key = folder / f"key-{world}-{width}"
        write_key(self.key)
        self.listeners = [Listener("127.0.0.1:0") for _ in range(world)]
        self.lead_address = self.listeners[0].address
        self.engines = [Mixing(width) for _ in range(world)]
        self.settings = EngineSettings(context=64, streams_max=2, rows_max=CHUNK, chunk_rows=CHUNK)
        self.described = EngineDescription(
            backend="mixing", device="none", row_dtype="float32", kv_dtype="float32", width=width,
            planes=1, kv_rows=128, states=2, batch_invariant=True, weight_bytes=1,
        )  # fmt: skip
        self.figures: dict[str, Any] = {}

    def _join(self, rank: int) -> Ring:
        description = Description(
            rank=rank, world=self.world, first=rank, end=rank + 1, layers=self.world,
            width=self.width, planes=1, row_dtype="float32", kv_dtype="float32", chunk_rows=CHUNK,
            rows_max=CHUNK, streams_max=2, context=64, states=2, kv_rows=128, weight_bytes=1,
            engine_version="1", backend="mixing", device="none", host=f"host-{rank}",
            rounds_in_flight_max=self.in_flight,
        )  # fmt: skip
        lead = None if rank == 0 else self.lead_address
        link = LinkConfig(rank, "", lead, str(self.key), join_seconds=10)
        return Ring.join(link, self.listeners[rank], description, [bytes(32)] * 8)

    def _follow(self, rank: int) -> None:
        rows = BoundaryRows(self.described, CHUNK)
        with self._join(rank) as ring:
            ring.ready(load_ms=1, bytes_held=1, bytes_read=1, seconds=10)
            engine: Any = self.engines[rank]
            is_last = rank == self.world - 1
            follow(engine, ring, rows, is_last=is_last, busy_seconds=20)

    def run(self, work: Callable[[Lead], Any]) -> Any:
        """Do ``work`` on an open ring; a follower's error is raised where rank 0 had none."""
        with concurrent.futures.ThreadPoolExecutor(self.world) as pool:
            followers = [pool.submit(self._follow, rank) for rank in range(1, self.world)]
            with self._join(0) as ring:
                ring.ready(load_ms=1, bytes_held=1, bytes_read=1, seconds=10)
                engine: Any = self.engines[0]
                lead = Lead(
                    engine, ring, BoundaryRows(self.described, CHUNK), self.settings, vocab=VOCAB,
                    decode=lambda ids: "".join(chr(97 + one % 26) for one in ids),
                )  # fmt: skip
                done = work(lead)
                self.figures = ring.figures()
            for follower in followers:
                follower.result(10)
        return done

    def tokens(self, prompt: list[int]) -> list[int]:
        """Generate six tokens for a prompt."""

        def work(lead: Lead) -> list[int]:
            events = [event.token_id for event in lead.generate(prompt, Sampling(), Limits(6, 64))]
            lead.drain()
            return events

        ids: list[int] = self.run(work)
        return ids


PROMPT = [1 + 7 * index % 90 for index in range(27)]


def test_both_sides_draw_the_line_between_the_lanes_at_the_same_size() -> None:
    assert OWN_ROW_LANE_BYTES == ROW_LANE_BYTES


@pytest.mark.parametrize("world", [2, 3, 4])
def test_chunks_in_flight_give_the_tokens_of_chunks_one_by_one(tmp_path: Path, world: int) -> None:
    one_by_one = Rig(tmp_path, world, SMALL, in_flight=1)
    rig = Rig(tmp_path, world, LARGE)
    assert rig.tokens(PROMPT) == one_by_one.tokens(PROMPT)
    assert [engine.started for engine in rig.engines] == [
        engine.started for engine in one_by_one.engines
    ]
    assert rig.figures["next_bulk_1"]["frames_sent"] == 7
    assert one_by_one.figures["next_bulk_1"]["frames_sent"] == 0


def test_rank_0_computes_further_chunks_while_rank_1_computes_the_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 2, LARGE)
    third = threading.Event()
    rig.engines[0].on_run = lambda number: third.set() if number == 2 else None
    in_time = []
    rig.engines[1].on_run = lambda number: in_time.append(number > 0 or third.wait(10))
    rig.tokens(PROMPT)
    assert all(in_time), "the third chunk was begun before the first came back"


def test_rank_0_never_has_more_chunks_in_flight_than_all_agreed_to(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 2, SMALL)
    done: list[int] = []
    ahead: list[int] = []
    rig.engines[0].on_run = lambda number: ahead.append(number - len(done))
    rig.engines[1].on_run = done.append
    rig.tokens(PROMPT)
    # A round counts until its return is received; rank 1 has begun it at the latest then.
    assert max(ahead) <= rig.in_flight


def test_an_engine_that_fails_with_chunks_in_flight_is_named_by_every_rank(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 3, LARGE)

    def fail(number: int) -> None:
        if number == 2:
            raise EngineError("a wheel came off")

    rig.engines[2].on_run = fail
    with pytest.raises(StagelinkError) as raised:
        rig.tokens(PROMPT)
    assert (raised.value.reason, raised.value.rank) == ("engine", 2)


def test_two_prompts_at_once_are_computed_in_the_same_rounds_large_or_small(tmp_path: Path) -> None:
    prompts = [PROMPT, PROMPT[3:20]]

    def work(lead: Lead) -> list[list[int]]:
        streams = [lead.submit(one, Sampling(), Limits(5, 64)) for one in prompts]
        lead.drain()
        return [stream.generated for stream in streams]

    large, small = Rig(tmp_path, 3, LARGE), Rig(tmp_path, 3, SMALL)
    assert large.run(work) == small.run(work)
    assert large.engines[2].started == small.engines[2].started


@pytest.mark.parametrize("stages", ["2", "3"])
def test_processes_with_chunks_on_the_bulk_lane_have_the_whole_models_logits(
    lab: Lab, stages: str
) -> None:
    ids = ",".join(str(1 + index * 7 % 250) for index in range(505))
    node = lab.generate(
        "--stages", stages, "--prompt-ids", ids, "--max-tokens", "3", "--ignore-eos", "--json",
        "--chunk-rows", "260", "--context", "512", "--compare-whole",
    )  # fmt: skip
    assert node.end() == 0, node.told
    assert node.result["exactness"]["equal"]
