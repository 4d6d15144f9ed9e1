"""A real ring whose control link goes through the fault proxy: the right answer, or one cause.

Offsets are places in a stream of the link: up 0..160 is the hello, 160..224 the proof, 224.. the
description; down 256.. is the roster and what follows. What the proxy does is tested beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from tests.ring.rig import Lab, Node

LAYERS = ["--layers", "0-4,4-8"]


class Outcome:
    """How the lead and the follower ended, and what the proxy saw."""

    def __init__(self, lab: Lab, *commands: str, flags: list[str] | None = None) -> None:
        flags = [*LAYERS, *(flags or [])]
        self.lead, address = lab.lead(2, *flags, "--json")
        with FaultProxy(address) as proxy:
            for command in commands:
                proxy.command(command)
            listen = ["--lead", proxy.address, "--listen", "127.0.0.1:0"]
            self.follower = lab.node(1, 2, *flags, *listen)
            self.codes = [node.end() for node in self.nodes]
            self.connections = proxy.status()

    @property
    def nodes(self) -> list[Node]:
        return [self.lead, self.follower]

    @property
    def ids(self) -> list[int]:
        assert self.codes == [0, 0], [node.told for node in self.nodes]
        ids: list[int] = self.lead.result["token_ids"]
        return ids

    @property
    def errors(self) -> list[str]:
        """The one error line of each."""
        assert self.codes == [1, 1], [node.told for node in self.nodes]
        assert [len(node.errors) for node in self.nodes] == [1, 1]
        return [node.errors[0] for node in self.nodes]


@pytest.fixture
def whole(lab: Lab) -> Any:
    node = lab.generate("--prompt-ids", "1,2,3", "--max-tokens", "8", "--ignore-eos", "--json")
    assert node.end() == 0, node.told
    return node.result["token_ids"]


@pytest.mark.parametrize("commands", [["slice both 3"], ["latency both 10 10"]], ids="-".join)
def test_a_link_in_pieces_or_late_changes_no_token(
    lab: Lab, whole: list[int], commands: list[str]
) -> None:
    assert Outcome(lab, *commands).ids == whole


def test_a_hello_that_was_changed_is_a_stranger_and_the_follower_dials_again(
    lab: Lab, whole: list[int]
) -> None:
    outcome = Outcome(lab, "flip up 60 0x01 @0")
    assert outcome.ids == whole
    assert len(outcome.connections) == 2
    assert outcome.connections[0]["down"]["taken"] == 0


@pytest.mark.parametrize("command", ["flip up 330 0x01", "duplicate up 260 20"])
def test_a_changed_frame_is_named_by_both(lab: Lab, command: str) -> None:
    for line in Outcome(lab, command).errors:
        assert "rank 1 " in line
        assert "payload_checksum" in line


@pytest.mark.parametrize("seal", [["--seal"], ["--seal", "chacha20"]], ids="".join)
def test_a_sealed_link_in_pieces_changes_no_token(
    lab: Lab, whole: list[int], seal: list[str]
) -> None:
    assert Outcome(lab, "slice both 7", flags=seal).ids == whole


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("flip up 330 0x01", "seal"),
        ("flip down 420 0x80", "seal"),
        ("duplicate up 260 20", "seal"),
        ("reorder up 260 20", "seal"),
        ("flip up 240 0x01", "header_checksum"),
    ],
)
def test_a_changed_byte_of_a_sealed_link_is_named_by_both(
    lab: Lab, command: str, reason: str
) -> None:
    for line in Outcome(lab, command, flags=["--seal"]).errors:
        assert f"{reason}: " in line


@pytest.mark.parametrize("command", ["truncate down 600", "reset down 600", "half_close down 600"])
def test_a_link_that_is_cut_is_a_lost_connection(lab: Lab, command: str) -> None:
    for line in Outcome(lab, command).errors:
        assert "connection lost" in line


def test_a_link_that_goes_silent_ends_both_at_the_third_interval(lab: Lab) -> None:
    outcome = Outcome(lab, "black_hole both 700")
    for line in outcome.errors:
        assert "no sign of life for 6.0 s" in line
