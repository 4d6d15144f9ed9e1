"""A rank's word survives the row that carries it; any other bytes are refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink.errors import PeerProtocolError
from stagelink.probe.terms import WORD_BYTES
from stagelink.probe.word import Fault, Machine, Word, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.probe.whole import Measured

MACHINE = Machine(1, "host1", "Darwin", "25.1", "arm64", None, 0.0, "block")


def _row(value: object) -> bytes:
    text = json.dumps(value).encode()
    return (len(text).to_bytes(4, "little") + text).ljust(WORD_BYTES, b"\0")


def _plain(word: Word) -> dict[str, Any]:
    row = encode(word)
    read: dict[str, Any] = json.loads(row[4 : 4 + int.from_bytes(row[:4], "little")])
    return read


def test_a_word_comes_out_as_it_went_in(make: Callable[..., Measured]) -> None:
    measured = make()
    for word in (measured.start, measured.end):
        row = encode(word)
        assert len(row) == WORD_BYTES
        assert decode(row, 0) == word


def test_a_failed_link_is_a_word_too() -> None:
    word = Word(MACHINE, fault=Fault("never_joined", "rank 1 never joined within 15 s"))
    assert decode(encode(word), 1) == word


def test_an_empty_row_is_no_word() -> None:
    assert decode(bytes(WORD_BYTES), 3) is None


@pytest.mark.parametrize(
    "change",
    [
        {"machine": None},
        {"machine": {"rank": 1}},
        {"more": 1},
        {"end": []},
        {"fault": {"reason": "x", "message": 7}},
        {"fault": {"reason": "x", "message": "a\x1b[2J"}},
        {"fault": {"reason": "x", "message": "m" * 2000}},
        {"back": {"mb_per_s": -1.0}},
    ],
)
def test_a_word_with_a_wrong_field_is_refused_and_its_rank_named(change: dict[str, Any]) -> None:
    row = _row({**_plain(Word(MACHINE)), **change})
    with pytest.raises(PeerProtocolError) as caught:
        decode(row, 5)
    assert (caught.value.reason, caught.value.rank) == ("probe_word", 5)


@pytest.mark.parametrize("value", [True, 1.5, "1", None, -1, 2**60])
def test_a_rank_that_is_no_count_is_refused(value: object) -> None:
    plain = _plain(Word(MACHINE))
    plain["machine"]["rank"] = value
    with pytest.raises(PeerProtocolError):
        decode(_row(plain), 0)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "true", '"0"'])
def test_a_load_that_is_no_number_is_refused(value: str) -> None:
    text = json.dumps(_plain(Word(MACHINE))).replace('"load": 0.0', f'"load": {value}').encode()
    with pytest.raises(PeerProtocolError):
        decode((len(text).to_bytes(4, "little") + text).ljust(WORD_BYTES, b"\0"), 0)


def test_a_length_beyond_the_row_is_refused() -> None:
    with pytest.raises(PeerProtocolError):
        decode(b"\xff\xff\xff\xff".ljust(WORD_BYTES, b"{"), 0)


def test_a_deep_word_is_refused() -> None:
    text = b"[" * (WORD_BYTES - 4)
    with pytest.raises(PeerProtocolError):
        decode(len(text).to_bytes(4, "little") + text, 0)


@given(st.binary(min_size=1, max_size=64))
def test_bytes_of_any_kind_raise_nothing_else(noise: bytes) -> None:
    row = (len(noise).to_bytes(4, "little") + noise).ljust(WORD_BYTES, b"\0")
    with pytest.raises(PeerProtocolError):
        decode(row, 0)
