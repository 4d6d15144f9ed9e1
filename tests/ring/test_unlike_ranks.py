"""Rings by hand of three in which one rank is unlike: every rank ends soon, with one line.

What two ranks say of each other is in test_failures; here is a third one that was right.
"""

from __future__ import annotations

import pytest
from tests.ring.rig import Lab, Node, wait_for

REFUSED = 2
INVARIANT = "--batch-invariant"


@pytest.fixture
def numpy_lab(lab: Lab) -> Lab:
    """A lab whose ranks take an engine that promises batch invariance where it is asked."""
    lab.environment["STAGELINK_ENGINE"] = "numpy"
    return lab


def _ring(lab: Lab, flags: list[list[str]]) -> list[Node]:
    """Start rank 0 and those that ``flags`` has more of; a rank once the one before listens."""
    lead, address = lab.lead(len(flags), *flags[0])
    nodes = [lead]
    for rank, own in enumerate(flags[1:], start=1):
        place = [] if "--lead" in own else ["--lead", address]
        nodes.append(lab.node(rank, len(flags), *place, *own))
        wait_for_word(nodes[-1])
    return nodes


def wait_for_word(node: Node) -> None:
    """Return once a rank listens or has ended."""
    wait_for(node, lambda: node.process.poll() is not None or "listening on" in node.told)


def _address(node: Node) -> str:
    return node.told.split("listening on ")[1].split(";")[0]


def _all_told(nodes: list[Node], *words: str) -> None:
    for rank, node in enumerate(nodes):
        assert node.end() == REFUSED, f"rank {rank}: {node.told}"
        assert len(node.errors) == 1, f"rank {rank}: {node.told}"
        assert all(word in node.errors[0] for word in words), f"rank {rank}: {node.errors}"


@pytest.mark.parametrize(
    ("promises", "odd"), [((0, 1), 2), ((0,), 1), ((2,), 2)], ids=["two", "lead", "follower"]
)
def test_a_promise_of_batch_invariance_that_some_ranks_lack_is_refused_on_all(
    numpy_lab: Lab, promises: tuple[int, ...], odd: int
) -> None:
    nodes = _ring(numpy_lab, [[INVARIANT] if rank in promises else [] for rank in range(3)])
    _all_told(nodes, f"rank {odd} ", "batch_invariance", INVARIANT)


def test_ranks_that_all_promise_batch_invariance_answer(numpy_lab: Lab) -> None:
    nodes = _ring(numpy_lab, [[INVARIANT]] * 3)
    assert [node.end() for node in nodes] == [0, 0, 0], nodes[0].told


def test_rank_0s_line_starts_a_rank_that_fits(numpy_lab: Lab) -> None:
    lead, address = numpy_lab.lead(2, INVARIANT, "--context", "64")
    line = next(one for one in lead.told.splitlines() if one.startswith("  stagelink node"))
    assert f"--lead {address}" in line
    # The engine is named although this machine's variable names it: another machine has none.
    assert "--engine numpy" in line
    follower = numpy_lab.run(*line.split()[1:])
    assert (lead.end(), follower.end()) == (0, 0), lead.told + follower.told


def test_a_shape_that_differs_on_the_last_rank_ends_the_rank_between(numpy_lab: Lab) -> None:
    nodes = _ring(numpy_lab, [[], [], ["--streams-max", "3"]])
    _all_told(nodes, "fingerprint_shapes", "--streams-max")


def test_a_rank_that_takes_another_follower_for_rank_0_ends_all_with_what_to_give(
    numpy_lab: Lab,
) -> None:
    lead, address = numpy_lab.lead(3)
    first = numpy_lab.node(1, 3, "--lead", address)
    wait_for(first, lambda: "listening on" in first.told)
    last = numpy_lab.node(2, 3, "--lead", _address(first))
    _all_told([lead, first, last], "bad_link", "--lead")


def test_a_rank_that_waits_less_than_the_others_says_whose_patience_ended(numpy_lab: Lab) -> None:
    lead, address = numpy_lab.lead(3, "--join-seconds", "30")
    first = numpy_lab.node(1, 3, "--lead", address, "--join-seconds", "1")
    for node in (lead, first):
        assert node.end() == 1, node.told
        assert len(node.errors) == 1, node.told
        assert "that rank 1 waits" in node.errors[0], node.errors
        assert "stagelink node" not in node.errors[0], node.errors
