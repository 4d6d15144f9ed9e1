"""Rings of real processes through the extension: rows, and what every rank says when one fails.

The link's own tests are in rust/net/tests; here is what only processes and signals show.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink import _native
from stagelink.errors import DeadlineError, PeerLostError, RefusedError, StagelinkError

if TYPE_CHECKING:
    from types import ModuleType

Spawn = Callable[..., Any]


def plan(op: int, first: int, rows: int, accepted: int = 0, returns: int = 1) -> _native.Plan:
    return _native.Plan(
        ids=[1],
        ops=[op],
        firsts=[first],
        rows=[rows],
        accepted=[accepted],
        generations=[0],
        returns=[returns],
    )


class Lead:
    """The test process as rank 0, with followers in processes of their own."""

    def __init__(self, stage: ModuleType, spawn: Spawn, key_file: str, modes: list[str]) -> None:
        listener = _native.Listener("127.0.0.1:0")
        world = len(modes) + 1
        numbered = list(enumerate(modes, start=1))
        self.stages = {rank: spawn(rank, world, listener.address, mode) for rank, mode in numbered}
        self.ring = stage.join(0, world, None, key_file, listener)
        for one in self.stages.values():
            one.next("joined")
        if "load" not in modes:
            stage.ready(self.ring)
            for one in self.stages.values():
                one.next("ready")

    def fail(self, rank: int, wait: Callable[[], object]) -> list[dict[str, Any]]:
        """Kill a rank while this one waits; what every survivor said, and how long after."""
        killed: list[float] = []

        def kill() -> None:
            killed.append(time.monotonic())
            self.stages[rank].signal(signal.SIGKILL)

        timer = threading.Timer(0.1, kill)
        timer.start()
        with pytest.raises(StagelinkError) as raised:
            wait()
        own = {
            "rank": raised.value.rank,
            "reason": raised.value.reason,
            "text": str(raised.value),
            "at": time.monotonic(),
        }
        timer.join()
        others = [one.next("error") for other, one in self.stages.items() if other != rank]
        for told in [own, *others]:
            assert told["at"] - killed[0] < 1, told
        return [own, *others]


@pytest.fixture
def lead(stage: ModuleType, spawn: Spawn, key_file: str) -> Callable[[list[str]], Lead]:
    return lambda modes: Lead(stage, spawn, key_file, modes)


def wait_for_rows(ring: _native.Ring) -> None:
    rows = _native.RowsBuffer(5120 * 4)
    number = ring.send_plan(plan(1, 0, 1))
    ring.receive_rows(number, rows)


def test_rows_come_back_byte_for_byte_through_two_other_processes(
    lead: Callable[[list[str]], Lead],
) -> None:
    ring = lead(["follow", "follow"]).ring
    out = np.random.default_rng(1).integers(0, 255, 256 * 5120 * 4, dtype=np.uint8)
    back = np.zeros_like(out)
    number = ring.send_plan(plan(1, 0, 256))
    assert ring.exchange(number, out, back) == 256
    assert (out == back).all()
    figures = ring.figures()
    assert figures["next_bulk_1"]["bytes_sent"] == out.nbytes + 32
    assert figures["previous_bulk_2"]["bytes_received"] == out.nbytes + 32
    ring.close()


def test_an_orderly_end_is_quick_and_every_process_leaves_without_an_error(
    lead: Callable[[list[str]], Lead],
) -> None:
    ring_of_three = lead(["follow", "follow"])
    start = time.monotonic()
    ring_of_three.ring.close()
    ring_of_three.ring.close()
    assert time.monotonic() - start < 0.9
    for one in ring_of_three.stages.values():
        one.next("closed")
        assert one.process.wait(5) == 0


@pytest.mark.parametrize("rank", [1, 2])
def test_a_killed_rank_is_named_by_all_while_the_ring_waits_for_rows(
    lead: Callable[[list[str]], Lead], rank: int
) -> None:
    ring_of_three = lead(["compute" if rank == 1 else "follow", "follow"])
    ring = ring_of_three.ring
    for told in ring_of_three.fail(rank, lambda: wait_for_rows(ring)):
        assert (told["rank"], told["reason"]) == (rank, "peer_lost")
        assert told["text"].startswith(f"rank {rank} (host{rank} 127.0.0.1:")


def test_a_rank_killed_while_it_computes_is_named_with_what_it_did(
    lead: Callable[[list[str]], Lead],
) -> None:
    ring_of_three = lead(["compute", "follow"])
    ring = ring_of_three.ring
    told = ring_of_three.fail(1, lambda: wait_for_rows(ring))
    assert {one["text"] for one in told} == {told[0]["text"]}
    assert "while rank 0 was receiving rows of round" in told[0]["text"]


def test_a_rank_killed_while_it_loads_is_named_by_all(
    lead: Callable[[list[str]], Lead], stage: ModuleType
) -> None:
    ring_of_three = lead(["load", "follow"])
    ring = ring_of_three.ring
    for told in ring_of_three.fail(1, lambda: stage.ready(ring)):
        assert (told["rank"], told["reason"]) == (1, "peer_lost")


def test_the_leads_own_death_is_named_by_every_follower(
    spawn: Spawn, stage: ModuleType, key_file: str
) -> None:
    listener = _native.Listener("127.0.0.1:0")
    followers = [spawn(rank, 3, listener.address) for rank in (1, 2)]
    child = os.fork()
    if child == 0:
        ring = stage.join(0, 3, None, key_file, listener)
        stage.ready(ring)
        time.sleep(60)
        os._exit(0)
    del listener
    for one in followers:
        one.next("joined")
        one.next("ready")
    killed = time.monotonic()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for one in followers:
        told = one.next("error")
        assert (told["rank"], told["reason"]) == (0, "peer_lost")
        assert told["at"] - killed < 1


def test_a_frozen_rank_is_found_by_its_silence(lead: Callable[[list[str]], Lead]) -> None:
    ring_of_two = lead(["follow"])
    ring_of_two.stages[1].signal(signal.SIGSTOP)
    with pytest.raises(DeadlineError, match=r"rank 1 .* no sign of life for 0\.3 s") as raised:
        wait_for_rows(ring_of_two.ring)
    assert (raised.value.reason, raised.value.rank) == ("silent", 1)
    assert raised.value.seconds == pytest.approx(0.3)


def test_control_c_ends_a_wait_at_once_and_every_other_rank_hears_of_it(
    lead: Callable[[list[str]], Lead],
) -> None:
    ring_of_two = lead(["compute"])
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.1, press)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        wait_for_rows(ring_of_two.ring)
    assert time.monotonic() - pressed[0] < 0.1
    timer.join()
    ring_of_two.ring.fail("interrupted", "interrupted")
    with pytest.raises(PeerLostError, match="interrupted"):
        wait_for_rows(ring_of_two.ring)


def test_control_c_at_a_follower_is_told_to_the_lead(lead: Callable[[list[str]], Lead]) -> None:
    ring_of_two = lead(["follow"])
    ring_of_two.stages[1].signal(signal.SIGINT)
    ring_of_two.stages[1].next("interrupted")
    with pytest.raises(PeerLostError, match=r"rank 1 .*: interrupted") as raised:
        wait_for_rows(ring_of_two.ring)
    assert raised.value.reason == "interrupted"


def test_a_forked_child_neither_disturbs_the_ring_nor_keeps_it_alive(
    lead: Callable[[list[str]], Lead],
) -> None:
    ring_of_two = lead(["follow"])
    child = os.fork()
    if child == 0:
        ring_of_two.ring.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    wait_rows = _native.RowsBuffer(5120 * 4)
    number = ring_of_two.ring.send_plan(plan(1, 0, 1))
    assert ring_of_two.ring.exchange(number, bytes(5120 * 4), wait_rows) == 1
    ring_of_two.ring.close()
    ring_of_two.stages[1].next("closed")


def test_another_fingerprint_is_a_refusal_that_names_the_field_in_both_processes(
    spawn: Spawn, stage: ModuleType, key_file: str
) -> None:
    listener = _native.Listener("127.0.0.1:0")
    follower = spawn(1, 2, listener.address)
    stage.FIELDS = [*stage.FIELDS[:2], bytes(32), *stage.FIELDS[3:]]
    with pytest.raises(RefusedError, match="tokenizer") as raised:
        stage.join(0, 2, None, key_file, listener)
    told = follower.next("error")
    assert raised.value.reason == told["reason"] == "fingerprint_tokenizer"
    assert told["name"] == "RefusedError"
