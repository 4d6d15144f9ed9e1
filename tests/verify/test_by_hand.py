"""A verification by rank 0 of a ring whose other ranks a person started with `stagelink node`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.ring.rig import wait_for
from tests.verify.test_rings import BROKEN, SHORT, passed, receipt

if TYPE_CHECKING:
    from tests.ring.rig import Lab, Node


def by_hand(lab: Lab, engines: list[str], *flags: str, fault: str = "") -> tuple[Node, list[Node]]:
    """Rank 0 with the verification, and a node for each of the other engines."""
    world = str(len(engines))
    wanted = [flag for flag in SHORT if flag != "--quiet"]
    lead = lab.run(
        "verify", str(lab.model), "--rank", "0", "--world", world, "--listen", "127.0.0.1:0",
        "--key-file", str(lab.key), "--engine", engines[0], *wanted, *flags,
    )  # fmt: skip
    wait_for(lead, lambda: "listening on " in lead.told)
    address = lead.told.split("listening on ")[1].split(";")[0]
    shapes = ["--chunk-rows", "48", "--streams-max", "4"]
    # What a person is told to start the others with has them too.
    wait_for(lead, lambda: lead.told.count("stagelink node") == len(engines) - 1)
    assert " ".join(shapes) in lead.told
    followers = [
        lab.node(
            rank, len(engines), "--lead", address, "--engine", engine, *shapes,
            environment={"STAGELINK_TEST_FAULT": fault} if fault else {},
        )
        for rank, engine in enumerate(engines[1:], start=1)
    ]  # fmt: skip
    return lead, followers


def test_ranks_started_by_hand_are_compared_by_what_comes_back(lab: Lab) -> None:
    lead, followers = by_hand(lab, ["numpy", "numpy", "numpy"])
    found = receipt(lead, 0)
    assert [node.end() for node in followers] == [0, 0]
    assert set(passed(found).values()) == {True}
    assert found["ring"] == "ranks started by hand"
    assert [one["name"] for one in found["measured"]["boundaries"]] == [
        "boundary 2 (after layer 1, rank 0, numpy)",
        "boundary 8 (after layer 7, ranks 1-2, numpy)",
        "head (rank 0, numpy)",
    ]
    assert lab.left_behind() == []


def test_a_fault_of_another_rank_is_told_from_rank_0s_own(lab: Lab) -> None:
    lead, _ = by_hand(lab, ["numpy", BROKEN], "--checks", "close", fault="scale")
    found = receipt(lead, 1)
    assert found["first_boundary_off"] == "boundary 8 (after layer 7, rank 1, numpy)"
    off: list[Any] = [one for one in found["measured"]["boundaries"] if one["own"]["relative"]]
    assert len(off) == 1


@pytest.mark.parametrize(
    ("place", "reason"),
    [(["--rank", "1", "--world", "2"], "rank"), (["--rank", "0", "--world", "1"], "world")],
)
def test_only_rank_0_of_a_ring_verifies(lab: Lab, place: list[str], reason: str) -> None:
    node = lab.run(
        "verify", str(lab.model), *place, "--listen", "127.0.0.1:0", "--key-file", str(lab.key),
        "--engine", "numpy", *SHORT,
    )  # fmt: skip
    assert node.end() == 2, node.told
    assert node.result["error"]["reason"] == reason
