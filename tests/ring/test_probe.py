"""`stagelink probe` between real processes on loopback: its shape, its bounds, and how it ends.

No figure is judged but by what no machine can do: loopback's speed is not this test's business.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.ring.rig import Node, ends_within, wait_for

from stagelink import _native
from stagelink.cli.keygen import write_key
from stagelink.config import LinkConfig
from stagelink.probe.pair import measure_link
from stagelink.probe.terms import Link

if TYPE_CHECKING:
    from tests.ring.rig import Lab


def _rank(lab: Lab, rank: int, world: int, *arguments: str) -> Node:
    place = ["probe", "--rank", str(rank), "--world", str(world)]
    key = [] if "--key-file" in arguments else ["--key-file", str(lab.key)]
    return lab.run(*place, *key, *arguments)


def _lead(lab: Lab, world: int, *arguments: str) -> tuple[Node, str]:
    lead = _rank(lab, 0, world, "--listen", "127.0.0.1:0", *arguments)
    wait_for(lead, lambda: "listening on " in lead.told)
    return lead, lead.told.split("listening on ")[1].split(";")[0]


def _check_link(link: dict[str, Any]) -> None:
    times = link["round_trip"]
    assert link["error"] is None
    assert times["samples"] >= 50
    assert 1 < times["least_us"] <= times["p50_us"] <= times["p99_us"] < 10e6
    for direction in ("forward", "back", "both"):
        rate = link[direction]
        assert 0 < rate["least_mb_per_s"] <= rate["mb_per_s"] <= rate["most_mb_per_s"] < 1e6
        assert 1 <= rate["bursts"] <= 5
        assert 65_536 <= rate["burst_bytes"] <= 8 << 20
    for end, rank in zip(link["ends"], (link["from"], link["to"]), strict=True):
        assert end["rank"] == rank
        assert (end["path"], end["address"]) == ("loopback", "127.0.0.1")
        assert end["interface"] in ("lo", "lo0")
        assert end["mss"] >= 536


def test_a_local_probe_measures_every_link_of_three(lab: Lab) -> None:
    node = lab.run("probe", "--local", "3", "--json")
    assert node.end() == 0, node.told
    made = node.result
    assert (made["probe"], made["evidence"], made["world"]) == (1, "physical", 3)
    assert [stage["rank"] for stage in made["stages"]] == [0, 1, 2]
    assert [(link["from"], link["to"]) for link in made["links"]] == [(0, 1), (1, 2), (2, 0)]
    for link in made["links"]:
        _check_link(link)
    assert lab.left_behind() == []


def test_a_sealed_probe_prints_a_line_a_link(lab: Lab) -> None:
    node = lab.run("probe", "--local", "2", "--seal", "--wait", "block")
    assert node.end() == 0, node.told
    lines = node.text.splitlines()
    assert lines[0].split()[:2] == ["link", "hosts"]
    assert lines[1].startswith("0 -> 1")
    assert all(line.startswith("warning: ") for line in lines[2:])


def test_ranks_by_hand_measure_with_their_own_key_and_rank_0_tells_all(lab: Lab) -> None:
    lead, address = _lead(lab, 2, "--json")
    follower = _rank(lab, 1, 2, "--lead", address, "--json")
    assert (lead.end(), follower.end()) == (0, 0), lead.told + follower.told
    _check_link(lead.result["links"][0])
    own = follower.result["links"][0]
    assert own["back"] == lead.result["links"][0]["back"]
    assert own["round_trip"] is None


def test_another_key_ends_both_ranks_in_one_line_each(lab: Lab) -> None:
    other = lab.folder / "other.key"
    write_key(other)
    lead, address = _lead(lab, 2, "--join-seconds", "3")
    follower = _rank(lab, 1, 2, "--lead", address, "--key-file", str(other))
    assert follower.end() == 2
    assert lead.end() == 1
    assert len(follower.errors) == len(lead.errors) == 1
    assert "key" in follower.errors[0]
    assert "rank 1 never joined within 3 s" in lead.errors[0]


def test_a_lead_that_accepts_and_says_nothing_ends_in_one_line_in_time(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        began = time.monotonic()
        follower = _rank(lab, 1, 2, "--lead", address, "--join-seconds", "2")
        assert follower.end() == 1
        assert time.monotonic() - began < 12
    assert len(follower.errors) == 1
    assert "rank 0" in follower.errors[0]


def test_a_serving_ring_refuses_a_probe_by_name(lab: Lab) -> None:
    lead, address = lab.lead(2, "--join-seconds", "20")
    probe = _rank(lab, 1, 2, "--lead", address)
    assert (probe.end(), lead.end()) == (2, 2), probe.told + lead.told
    assert len(probe.errors) == len(lead.errors) == 1
    assert "fingerprint" in probe.errors[0]


def test_a_rank_that_is_killed_while_it_measures_is_named_by_all(lab: Lab) -> None:
    lead, address = _lead(lab, 3)
    followers = [_rank(lab, rank, 3, "--lead", address) for rank in (1, 2)]
    # Besides its main thread: the control thread of the whole ring, and then that of the link's.
    threads = Path(f"/proc/{lead.process.pid}/task")
    wait_for(lead, lambda: len(list(threads.iterdir())) >= 3)
    os.kill(followers[0].process.pid, signal.SIGKILL)
    killed = time.monotonic()
    assert lead.end() == 1, lead.text
    assert followers[1].end() == 1
    assert time.monotonic() - killed < 10
    for node in (lead, followers[1]):
        assert len(node.errors) == 1
        assert "rank 1" in node.errors[0]


def test_ctrl_c_ends_a_local_probe_and_every_process_of_it(lab: Lab) -> None:
    node = lab.run("probe", "--local", "2")
    wait_for(node, lambda: len(node.children()) == 1)
    children = list(node.children().values())
    node.process.send_signal(signal.SIGINT)
    assert node.end() == 130
    assert node.errors == ["stagelink: error: interrupted"]
    assert ends_within(children, 5)
    assert lab.left_behind() == []


def test_a_launcher_that_is_killed_leaves_no_rank_behind(lab: Lab) -> None:
    node = lab.run("probe", "--local", "2")
    wait_for(node, lambda: len(node.children()) == 1)
    children = list(node.children().values())
    node.process.kill()
    assert ends_within(children, 10)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--local", "1"],
        ["--local", "65"],
        ["--local", "2", "--rank", "0"],
        ["--rank", "0", "--world", "1"],
        ["--rank", "0"],
    ],
)
def test_wrong_use_is_refused_at_once(lab: Lab, arguments: list[str]) -> None:
    node = lab.run("probe", *arguments)
    assert node.end() == 2
    assert len(node.errors) == 1


class _Whole:
    """Stands for the whole ring, of which a link needs only the launch id."""

    launch_id = bytes(16)


def test_a_link_whose_other_end_never_answers_is_a_fault_and_no_exception(lab: Lab) -> None:
    config = LinkConfig(
        rank=3,
        listen="127.0.0.1:0",
        lead=None,
        key_file=str(lab.key),
        launch_id=None,
        join_seconds=0.3,
    )
    listener = _native.Listener("127.0.0.1:0")
    addresses = {2: listener.address, 3: "127.0.0.1:0"}
    word = measure_link(Link(2, 3), config, _Whole(), addresses)  # type: ignore[arg-type]
    assert word.fault is not None
    assert word.fault.reason in ("never_joined", "deadline")
    assert "rank 0 is rank 2" in word.fault.message
    assert (word.end, word.back) == (None, None)
