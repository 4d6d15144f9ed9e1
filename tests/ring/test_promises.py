"""What an engine says that it can do, from its description to what rank 0 knows and refuses."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink._native import Listener, Plan, RowsBuffer
from stagelink.cli.keygen import write_key
from stagelink.config import LinkConfig, ModelConfig
from stagelink.errors import LocalProtocolError
from stagelink.node.stage import Stage, prepare
from stagelink.ring import Ring

if TYPE_CHECKING:
    from pathlib import Path

OPEN, CONTINUE, RETURN_ALL = 1, 2, 1


class TwoStages:
    """Two stages of one model, which said what they are and joined; the second computes nothing."""

    def __init__(self, folder: Path, model: Path, *, keeps: bool, **changes: Any) -> None:
        write_key(folder / "key")
        self._key = str(folder / "key")
        config = ModelConfig(model=str(model), world=2, context=64, **changes)
        self.stages = [prepare(config, rank) for rank in range(2)]
        last = self.stages[1]
        last.described = dataclasses.replace(last.described, keeps=keeps)
        self._listeners = [Listener("127.0.0.1:0") for _ in range(2)]
        self._lead_address = self._listeners[0].address
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._followed = self._pool.submit(self._follow)

    def join(self, rank: int = 0) -> Ring:
        """Join, and be ready."""
        stage: Stage = self.stages[rank]
        lead = None if rank == 0 else self._lead_address
        link = LinkConfig(rank, "", lead, self._key, join_seconds=10)
        listener, fields = self._listeners[rank], stage.fingerprint.digests
        ring = Ring.join(link, listener, stage.description(), fields)
        ring.ready(load_ms=1, bytes_held=1, bytes_read=1, seconds=10)
        return ring

    def _follow(self) -> None:
        """Send on what comes, until bye."""
        rows = RowsBuffer(1 << 20)
        with self.join(1) as ring:
            while (received := ring.receive_plan()) is not None:
                ring.receive_rows(received[0], rows)  # type: ignore[arg-type]
                ring.send_rows(received[0], rows)  # type: ignore[arg-type]

    def end(self) -> None:
        """Wait for the second stage's end."""
        self._followed.result(10)


def _plan(op: int, first: int, rows: int, accepted: int) -> Plan:
    return Plan(
        ids=[1], ops=[op], firsts=[first], rows=[rows], accepted=[accepted], generations=[0],
        returns=[RETURN_ALL],
    )  # fmt: skip


def test_rank_0_knows_what_every_engine_promises(tmp_path: Path, tiny: Path) -> None:
    two = TwoStages(tmp_path, tiny, keeps=False, batch_invariant=True)
    with two.join() as ring:
        told = [(one["keep"], one["batch_invariant"], one["kv_dtype"]) for one in ring.members]
    two.end()
    assert told == [(True, True, "float32"), (False, True, "float32")]


def test_a_plan_that_cuts_back_names_the_rank_whose_engine_cannot(
    tmp_path: Path, tiny: Path
) -> None:
    two = TwoStages(tmp_path, tiny, keeps=False)
    rows = np.zeros(1 << 20, dtype=np.uint8)
    with two.join() as ring:
        ring.exchange(ring.send_plan(_plan(OPEN, 0, 2, 0)), rows, rows.copy())
        with pytest.raises(LocalProtocolError, match=r"rank 1 \(.*stream 1.*--engine") as caught:
            ring.send_plan(_plan(CONTINUE, 1, 1, 1))
        # Nothing was sent: the ring goes on with every row kept.
        ring.exchange(ring.send_plan(_plan(CONTINUE, 2, 1, 2)), rows, rows.copy())
    two.end()
    assert caught.value.reason == "engine"


def test_an_engine_that_can_is_sent_a_plan_that_cuts_back(tmp_path: Path, tiny: Path) -> None:
    two = TwoStages(tmp_path, tiny, keeps=True)
    rows = np.zeros(1 << 20, dtype=np.uint8)
    with two.join() as ring:
        ring.exchange(ring.send_plan(_plan(OPEN, 0, 2, 0)), rows, rows.copy())
        assert ring.exchange(ring.send_plan(_plan(CONTINUE, 1, 1, 1)), rows, rows.copy()) == 1
    two.end()
