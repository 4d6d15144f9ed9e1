"""What is slow is not dead: many keep-alive intervals of a slow stage and of slow links, no error.

The runs of a whole minute with the default timers are marked long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.faults.ring_of_stubs import StubRing
from tests.faults.stub_rank import ROW_BYTES

if TYPE_CHECKING:
    from pathlib import Path

MINUTE = 60.0
# What a link of 1 Mbit/s carries, and one on which a row takes five intervals.
SLOW_BYTES_PER_SECOND = 125_000


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return str(path)


def finished(key_file: str, rounds: int, command: str = "", **settings: Any) -> float:
    """Run some rounds to their end; returns how long they took."""
    with StubRing(key_file, rounds=rounds, **settings) as ring:
        if command:
            # The handshake passes first: what is slow here is the ring, not its boot.
            for rank in ring.ranks.values():
                rank.next("joined")
            for proxy in (*ring.boundary.values(), *ring.control.values()):
                proxy.command(command)
        for rank in ring.ranks.values():
            if not command:
                rank.next("joined")
            rank.next("running", 3 * MINUTE)
        ended = [rank.next("closed", 3 * MINUTE) for rank in ring.ranks.values()]
    assert [one["rounds"] for one in ended] == [rounds] * 3
    return float(ended[0]["at"])


def test_a_stage_that_computes_for_twenty_intervals_is_not_dead(key_file: str) -> None:
    finished(key_file, 2, interval=0.1, of_rank={1: {"compute": 2.0}})


def test_a_lead_that_computes_for_twenty_intervals_is_not_dead(key_file: str) -> None:
    finished(key_file, 2, interval=0.1, of_rank={0: {"compute": 2.0}})


def test_a_link_on_which_a_row_takes_ten_intervals_is_not_dead(key_file: str) -> None:
    finished(key_file, 2, f"rate up {ROW_BYTES}", boundary=(1,), interval=0.1)


def test_links_that_are_late_by_more_than_an_interval_are_not_dead(key_file: str) -> None:
    finished(key_file, 3, "latency both 250 50", boundary=(1, 2), control=(1, 2), interval=0.2)


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stage_that_computes_for_a_minute_is_not_dead(key_file: str, rank: int) -> None:
    finished(key_file, 2, interval=2.0, busy=300.0, of_rank={rank: {"compute": MINUTE}})


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_prompt_that_takes_a_minute_on_a_slow_link_is_not_dead(key_file: str) -> None:
    rows = int(MINUTE * SLOW_BYTES_PER_SECOND / ROW_BYTES / 2)
    command = f"rate up {SLOW_BYTES_PER_SECOND}"
    finished(key_file, 2, command, boundary=(1,), interval=2.0, rows=rows)
