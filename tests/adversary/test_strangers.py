"""Strangers at the door of a rank that boots: told nothing, costing nothing, keeping nobody out.

What a holder of the key is told is in test_old_words.py.
"""

from __future__ import annotations

import resource
import secrets
import socket
import time
from typing import TYPE_CHECKING

import pytest
from tests.adversary.conftest import Footprint
from tests.adversary.strangers import (
    NO_KEY,
    PATIENCE,
    Flood,
    Stranger,
    connector,
    greetings,
)
from tests.support.second_reader.wire import parse_header

if TYPE_CHECKING:
    from tests.adversary.conftest import Door

CHALLENGE_BYTES = 64


@pytest.mark.parametrize("words", sorted(greetings(0, 2)))
def test_what_is_no_hello_gets_no_answer(lead: Door, words: str) -> None:
    stranger = Stranger(lead.address)
    stranger.send(greetings(0, 2)[words])
    stranger.until_closed()
    assert stranger.got == b""


def test_strangers_of_every_kind_leave_no_trace_and_the_right_peer_joins(door: Door) -> None:
    before = Footprint.of(door)
    strangers = []
    for _ in range(20):
        for words in greetings(door.rank, door.ring.world).values():
            strangers.append(Stranger(door.address))
            strangers[-1].send(words)
    assert before.is_flat()
    door.completes()
    for stranger in strangers:
        stranger.until_closed()
        assert stranger.got == b""


def test_a_hello_gets_the_challenge_and_a_wrong_proof_nothing(door: Door) -> None:
    stranger, hands = Stranger(door.address), connector(NO_KEY, door.expected)
    stranger.send(hands.hello)
    challenge = stranger.read(CHALLENGE_BYTES)
    assert parse_header(challenge).kind == "challenge"
    stranger.send(hands.challenged(challenge))
    stranger.until_closed()
    assert stranger.got == challenge
    door.completes()


def test_a_challenge_says_nothing_but_a_fresh_nonce(lead: Door) -> None:
    challenges = []
    for _ in range(3):
        stranger = Stranger(lead.address)
        stranger.send(connector(NO_KEY, lead.expected).hello)
        challenges.append(stranger.read(CHALLENGE_BYTES))
        stranger.close()
    heads = {challenge[:24] for challenge in challenges}
    nonces = {challenge[32:] for challenge in challenges}
    assert (len(heads), len(nonces)) == (1, 3)


def test_one_byte_at_a_time_ends_at_the_absolute_deadline(lead: Door) -> None:
    hello = connector(NO_KEY, lead.expected).hello
    stranger, began = Stranger(lead.address), time.monotonic()
    stranger._socket.settimeout(0.25)
    closed = False
    while not closed:
        stranger.send(hello[:1])
        hello = hello[1:]
        try:
            closed = stranger._socket.recv(1) == b""
        except TimeoutError:
            assert time.monotonic() - began < PATIENCE
        except ConnectionResetError:
            closed = True
    assert 4.5 < time.monotonic() - began < PATIENCE


def completes_after(door: Door, began: float) -> None:
    door.completes()
    assert time.monotonic() - began < PATIENCE


def test_strangers_are_said_once_with_their_count(
    lead: Door,
) -> None:
    for _ in range(5):
        stranger, hands = Stranger(lead.address), connector(NO_KEY, lead.expected)
        stranger.send(hands.hello)
        stranger.send(hands.challenged(stranger.read(CHALLENGE_BYTES)))
        stranger.until_closed()
    assert lead.completes() == "5 connections failed the key proof from 127.0.0.1"


def test_a_boot_without_strangers_says_nothing(lead: Door) -> None:
    assert lead.completes() == ""


def test_slow_and_silent_strangers_in_every_place_keep_nobody_out(door: Door) -> None:
    strangers = [Stranger(door.address) for _ in range(40)]
    for stranger in strangers[::2]:
        stranger.send(b"S")
    completes_after(door, time.monotonic())


def test_hellos_without_a_proof_in_every_place_keep_nobody_out(lead: Door) -> None:
    """A hello needs no key, so anybody can fill the places with those that are being answered."""

    def greet() -> None:
        stranger = Stranger(lead.address)
        stranger.send(connector(NO_KEY, lead.expected).hello)
        stranger.until_closed()
        stranger.close()

    before = Footprint.of(lead)
    with Flood(24, greet) as flood:
        time_limit = time.monotonic() + PATIENCE
        while flood.done < 24 and time.monotonic() < time_limit:
            assert before.is_flat()
        lead.completes()


def test_wrong_proofs_without_an_end_keep_nobody_out(door: Door) -> None:
    def try_it() -> None:
        stranger, hands = Stranger(door.address), connector(NO_KEY, door.expected)
        stranger.send(hands.hello)
        challenge = stranger.read(CHALLENGE_BYTES)
        if len(challenge) == CHALLENGE_BYTES:
            stranger.send(hands.challenged(challenge))
        stranger.until_closed()
        assert len(stranger.got) <= CHALLENGE_BYTES
        stranger.close()

    before = Footprint.of(door)
    with Flood(8, try_it) as flood:
        while flood.done < 50:
            assert before.is_flat()
        door.completes()


def test_a_source_that_fails_again_and_again_is_answered_late_and_no_other(lead: Door) -> None:
    for _ in range(3):
        stranger = Stranger(lead.address, source="127.0.0.7")
        stranger.send(secrets.token_bytes(200))
        stranger.until_closed()
    waits = []
    for source in ("127.0.0.7", "127.0.0.8"):
        stranger, began = Stranger(lead.address, source=source), time.monotonic()
        stranger.send(connector(NO_KEY, lead.expected).hello)
        assert len(stranger.read(CHALLENGE_BYTES)) == CHALLENGE_BYTES
        waits.append(time.monotonic() - began)
        stranger.close()
    assert waits[0] > 0.9
    assert waits[1] < 0.9


def test_ten_thousand_half_open_connections_keep_nobody_out(lead: Door) -> None:
    count = 10_000
    need = count + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < need:
        pytest.skip(f"needs {need} descriptors, this system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, need), hard))
    before = Footprint.of(lead)
    sockets = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(lead.address)
            sockets.append(one)
            if len(sockets) % 100 == 0:
                assert before.is_flat()
        lead.completes()
    finally:
        for one in sockets:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
