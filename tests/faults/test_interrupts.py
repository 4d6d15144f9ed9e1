"""Control-C ends every wait of the link within a tenth of a second, whatever it waits for.

The waits sleep at most 50 ms at a time (docs/protocol.md asks for none of this; Python users do).
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.adversary.strangers import Stranger, address_of
from tests.faults.ring_of_stubs import Rank, StubRing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMIT_SECONDS = 0.1
# A busy core can hold a process back for longer than its wait takes to end: the best of a few.
TRIES = 4
LONG = 60.0
Waiting = contextlib.AbstractContextManager[Rank]


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return str(path)


@contextlib.contextmanager
def lead_that_waits_for_ranks(key_file: str) -> Iterator[Rank]:
    with StubRing(key_file, world=2, absent=(1,)) as ring:
        Stranger(address_of(ring.address)).leave_at_once()
        yield ring.ranks[0]


@contextlib.contextmanager
def follower_that_dials_nobody(key_file: str) -> Iterator[Rank]:
    with (
        socket.socket() as taken,
        StubRing(key_file, world=2, absent=(0, 1)) as ring,
    ):
        taken.bind(("127.0.0.1", 0))
        ring.addresses = {0: "{}:{}".format(*taken.getsockname())}
        yield ring.add(1)


@contextlib.contextmanager
def follower_that_waits_for_a_roster(key_file: str) -> Iterator[Rank]:
    with StubRing(key_file, absent=(2,)) as ring:
        Stranger(address_of(ring.addresses[1])).leave_at_once()
        yield ring.ranks[1]


def joined(rank: int, **settings: Any) -> Callable[[str], Waiting]:
    """A rank of a ring that gets no further."""

    @contextlib.contextmanager
    def waiting(key_file: str) -> Iterator[Rank]:
        with StubRing(key_file, **settings) as ring:
            for one in ring.ranks.values():
                one.next("joined")
            yield ring.ranks[rank]

    return waiting


COMPUTES = {"of_rank": {1: {"compute": LONG}}}
BULK = {"rows": 256, "posted": True}
WAITS: dict[str, Callable[[str], Waiting]] = {
    "join, rank 0": lead_that_waits_for_ranks,
    "join, dialling": follower_that_dials_nobody,
    "join, linked": follower_that_waits_for_a_roster,
    "ready, rank 0": joined(0, of_rank={1: {"phase": "load"}}),
    "ready, follower": joined(2, of_rank={1: {"phase": "load"}}),
    "receive_plan": joined(1, of_rank={0: {"compute": LONG, "phase": "load"}}),
    "receive_rows": joined(2, **COMPUTES),
    "receive_rows, rank 0": joined(0, **COMPUTES),
    "send_rows, no credit": joined(0, ahead=4, **COMPUTES),
    "post_receive": joined(2, **BULK, **COMPUTES),
}


@pytest.mark.parametrize("what", WAITS)
def test_control_c_ends_the_wait_of(key_file: str, what: str) -> None:
    took = []
    while len(took) < TRIES and min(took, default=LONG) >= LIMIT_SECONDS:
        with WAITS[what](key_file) as rank:
            rank.until_asleep()
            pressed = time.monotonic()
            rank.send(signal.SIGINT)
            took.append(_interrupted(rank)["at"] - pressed)
    assert min(took) < LIMIT_SECONDS, took


def _interrupted(rank: Rank) -> dict[str, Any]:
    return rank.next("interrupted")


def test_a_follower_that_is_interrupted_while_the_ring_comes_together_is_named(
    key_file: str,
) -> None:
    with StubRing(key_file, absent=(2,)) as ring:
        Stranger(address_of(ring.addresses[1])).leave_at_once()
        ring.ranks[1].until_asleep()
        ring.ranks[1].send(signal.SIGINT)
        told = ring.ranks[0].next("error")
    assert (told["reason"], told["rank"]) == ("interrupted", 1)
    assert "rank 1" in told["text"]
