"""Rings across hosts with cables between them: the same answer on any link, and pulled cables.

Skipped where network namespaces cannot be made; the reason says why.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.hosts.namespaces import Hosts, why_not
from tests.hosts.table import ring_across
from tests.ring.rig import Lab

from stagelink_numpy.tiny import make_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")

ASK = ["--prompt-ids", "1,2,3,4,5,6,7", "--max-tokens", "8", "--ignore-eos", "--json"]
INTERVAL = 0.2
SILENT_SECONDS = 3 * INTERVAL
# To look, to tell, and to be scheduled on a busy machine.
SLACK_SECONDS = 1.5
# What rows may take (docs/protocol.md 8), from a keep-alive that told of the wait.
ROWS_SECONDS = 5.3 + 2 * INTERVAL


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture
def lab(tmp_path: Path, tiny: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, tiny)
    yield made
    made.end()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> list[int]:
    """The answer of one process."""
    made = Lab(tmp_path_factory.mktemp("whole"), tiny)
    node = made.generate(*ASK)
    assert node.end() == 0, node.told
    ids: list[int] = node.result["token_ids"]
    return ids


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"mtu": 1280}, None),
        ({"mtu": 9000}, None),
        ({"family": 6, "mtu": 1280}, None),
        ({}, "1gbit"),
    ],
    ids=["mtu-1280", "mtu-9000", "ipv6-only", "1-gbit"],
)
def test_a_ring_across_three_hosts_answers_as_one_process(
    lab: Lab, whole: list[int], settings: dict[str, Any], rate: str | None
) -> None:
    with Hosts(**settings) as hosts:
        if rate is not None:
            hosts.shape(rate, "32kb")
        # `--listen` comes twice for the lead; the later one counts.
        lead, address = lab.lead(3, *ASK, "--listen", hosts.listen(0), within=hosts.within(0))
        for rank in (1, 2):
            place = ["--lead", address, "--listen", hosts.listen(rank)]
            lab.node(rank, 3, *place, within=hosts.within(rank))
        assert [node.end() for node in lab.nodes] == [0, 0, 0], [node.told for node in lab.nodes]
    assert lead.result["token_ids"] == whole


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts() as made:
        yield made


@pytest.mark.parametrize("phase", ["decode", "idle"])
def test_a_host_that_is_unplugged_is_named_by_the_others_and_names_the_lead(
    hosts: Hosts, key_file: str, phase: str
) -> None:
    with ring_across(hosts, key_file, interval=INTERVAL, phase=phase) as ring:
        ring.run()
        hosts.unplug(2)
        pulled = time.monotonic()
        told = ring.errors()
    assert [one["rank"] for one in told] == [2, 2, 0]
    assert [one["reason"] for one in told] == ["silent"] * 3
    for one in told:
        assert one["at"] - pulled < SILENT_SECONDS + SLACK_SECONDS, told


def test_a_lead_that_is_unplugged_is_named_by_every_follower(hosts: Hosts, key_file: str) -> None:
    with ring_across(hosts, key_file, interval=INTERVAL, phase="decode") as ring:
        ring.run()
        hosts.unplug(0)
        pulled = time.monotonic()
        told = ring.errors()
    assert [(one["rank"], one["reason"]) for one in told[1:]] == [(0, "silent")] * 2
    # It hears nobody any more and names the first that it misses.
    assert told[0]["reason"] == "silent"
    for one in told:
        assert one["at"] - pulled < SILENT_SECONDS + SLACK_SECONDS, told


def test_a_cable_between_two_followers_that_is_pulled_is_named_by_all(
    hosts: Hosts, key_file: str
) -> None:
    """Both of its ends are alive, and hear the lead; only rows do not arrive."""
    with ring_across(hosts, key_file, interval=INTERVAL, phase="decode") as ring:
        ring.run()
        hosts.pull(1, 2)
        pulled = time.monotonic()
        told = ring.errors()
    assert [(one["rank"], one["reason"]) for one in told] == [(1, "deadline")] * 3
    assert "did not reach rank 2" in told[0]["text"]
    for one in told:
        assert one["at"] - pulled < ROWS_SECONDS + SLACK_SECONDS, told


def test_a_host_that_dies_is_named_at_once(hosts: Hosts, key_file: str) -> None:
    with ring_across(hosts, key_file, interval=INTERVAL, phase="prompt", rows=256) as ring:
        killed = ring.run().send(1, signal.SIGKILL)
        told = ring.errors((1,))
    assert [(one["rank"], one["reason"]) for one in told] == [(1, "peer_lost")] * 2
    for one in told:
        assert one["at"] - killed < SLACK_SECONDS, told
