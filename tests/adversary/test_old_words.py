"""Words that were once right: replayed, reflected, or said for a place that is taken.

A holder of the key learns what is wrong, under a MAC; nobody else does.
"""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

import pytest
from tests.adversary.strangers import KEY, NO_KEY, Stranger, connector, follower, neighbour
from tests.faults.ring_of_stubs import StubRing
from tests.support.second_reader.handshake import ZEROS
from tests.support.second_reader.wire import Refusal, make_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.adversary.conftest import Door

CHALLENGE_BYTES = 64
HELLO_BYTES = 160
PROOF_BYTES = 64
REFUSED_BYTES = 288
ANOTHER_LAUNCH = bytes([7]) * 16


def test_a_replayed_hello_and_proof_get_a_fresh_challenge_and_nothing_more(lead: Door) -> None:
    first, hands = Stranger(lead.address), connector(KEY, follower(1, 2, launch=ANOTHER_LAUNCH))
    first.send(hands.hello)
    proof = hands.challenged(first.read(CHALLENGE_BYTES))
    first.send(proof)
    # It was a holder's: the refusal names the launch, and ends that connection alone.
    with pytest.raises(Refusal, match="launch"):
        hands.answered(first.read(REFUSED_BYTES))
    again = Stranger(lead.address)
    again.send(hands.hello)
    challenge = again.read(CHALLENGE_BYTES)
    again.send(proof)
    again.until_closed()
    assert again.got == challenge != first.got[:CHALLENGE_BYTES]
    lead.completes()


def test_a_proof_of_one_connection_is_worth_nothing_on_another(lead: Door) -> None:
    one, other = Stranger(lead.address), Stranger(lead.address)
    hands = [connector(KEY, follower(1, 2, launch=ANOTHER_LAUNCH)) for _ in range(2)]
    for stranger, hand in zip((one, other), hands, strict=True):
        stranger.send(hand.hello)
    challenges = [stranger.read(CHALLENGE_BYTES) for stranger in (one, other)]
    other.send(hands[0].challenged(challenges[0]))
    other.until_closed()
    assert other.got == challenges[1]


def test_a_hello_whose_nonce_is_the_challenge_of_another_is_only_challenged(lead: Door) -> None:
    one = Stranger(lead.address)
    one.send(connector(NO_KEY, follower(1, 2)).hello)
    nonce = one.read(CHALLENGE_BYTES)[32:]
    mirrored = make_frame("hello", follower(1, 2).encode(1, nonce), sequence=0)
    other = Stranger(lead.address)
    other.send(mirrored)
    challenge = other.read(CHALLENGE_BYTES)
    other.send(make_frame("proof", secrets.token_bytes(32), sequence=1))
    other.until_closed()
    assert other.got == challenge


def test_a_place_that_is_taken_is_refused_under_a_mac_and_the_first_stays(key_file: str) -> None:
    with StubRing(key_file, world=3, absent=(2,)) as ring:
        host, _, port = ring.address.rpartition(":")
        # Until the rank's own handshake is through, the place is free and this one would get it:
        # a rank that knows only rank 0's address rests when it is linked to it.
        ring.ranks[1].until_asleep()
        who = follower(1, 3, launch=ZEROS)
        second, hands = Stranger((host, int(port))), connector(KEY, who)
        assert _answered(second, hands) == "rank_taken"
        second.close()
        late = ring.add(2)
        for one in (ring.ranks[0], ring.ranks[1], late):
            one.next("joined")


def _answered(stranger: Stranger, hands: object) -> str:
    stranger.send(hands.hello)  # type: ignore[attr-defined]
    stranger.send(hands.challenged(stranger.read(CHALLENGE_BYTES)))  # type: ignore[attr-defined]
    with pytest.raises(Refusal) as refused:
        hands.answered(stranger.read(REFUSED_BYTES))  # type: ignore[attr-defined]
    return refused.value.code


def test_a_holder_of_another_launch_learns_only_that(door: Door) -> None:
    world = door.ring.world
    who = follower(1, world) if door.rank == 0 else neighbour(door.rank, world)
    hands = connector(KEY, who.__class__(**{**vars(who), "launch_id": ANOTHER_LAUNCH}))
    stranger = Stranger(door.address)
    assert _answered(stranger, hands) == "launch"
    assert len(stranger.got) == CHALLENGE_BYTES + REFUSED_BYTES
    door.completes()


@pytest.fixture
def impostor() -> Iterator[socket.socket]:
    """Somebody who listens where rank 0 should be."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


def dialled(key_file: str, listener: socket.socket) -> StubRing:
    """Rank 1, told that rank 0 is at the impostor's."""
    ring = StubRing(key_file, world=2, absent=(0, 1))
    ring.addresses = {0: "{}:{}".format(*listener.getsockname())}
    ring.add(1)
    return ring


def test_a_hello_that_comes_back_as_a_challenge_is_refused_before_any_proof(
    key_file: str, impostor: socket.socket
) -> None:
    with dialled(key_file, impostor) as ring:
        connection, _ = impostor.accept()
        with connection:
            hello = _exactly(connection, HELLO_BYTES)
            connection.sendall(make_frame("challenge", hello[96:128], sequence=0))
            told = ring.ranks[1].next("error")
            assert (told["reason"], told["rank"]) == ("nonce_reflected", 0)
            connection.settimeout(5)
            assert connection.recv(1) == b""


def test_a_proof_that_comes_back_as_a_welcome_is_no_welcome(
    key_file: str, impostor: socket.socket
) -> None:
    with dialled(key_file, impostor) as ring:
        connection, _ = impostor.accept()
        with connection:
            hello = _exactly(connection, HELLO_BYTES)
            connection.sendall(make_frame("challenge", secrets.token_bytes(32), sequence=0))
            proof = _exactly(connection, PROOF_BYTES)
            connection.sendall(make_frame("welcome", hello[32:] + proof[32:], sequence=1))
            told = ring.ranks[1].next("error")
            assert (told["reason"], told["rank"]) == ("key", 0)


def _exactly(connection: socket.socket, count: int) -> bytes:
    connection.settimeout(10)
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece
        data += piece
    return data
