"""Text of growing id lists: joined pieces equal the whole, and none ends in half a character."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from stagelink.request.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _bytes_decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def _pieces(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push(one) for one in ids), detokenizer.flush()]


@given(st.text(max_size=60))
def test_valid_text_comes_out_whole_and_without_a_replacement_character(text: str) -> None:
    ids = list(text.encode())
    pieces = _pieces(_bytes_decode, ids)
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


@given(st.lists(st.integers(0, 255), max_size=80))
def test_any_bytes_come_out_as_the_decoded_whole(ids: list[int]) -> None:
    assert "".join(_pieces(_bytes_decode, ids)) == _bytes_decode(ids)


def test_a_character_of_four_tokens_comes_with_its_last_byte() -> None:
    ids = list("a😀b".encode())
    assert _pieces(_bytes_decode, ids) == ["a", "", "", "", "😀", "b", ""]


def test_half_a_character_at_the_end_is_flushed() -> None:
    ids = list("a€".encode())[:-1]
    assert _pieces(_bytes_decode, ids) == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]


def _byte_level() -> Tokenizer:
    """Every byte a token, in the alphabet of GPT-2's byte level."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    letters = {byte: chr(byte) for byte in kept} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }
    vocab = {letters[byte]: byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


BYTE_LEVEL = _byte_level()


@given(st.lists(st.integers(0, 255), max_size=60))
def test_a_byte_level_tokenizer_comes_out_as_its_decoded_whole(ids: list[int]) -> None:
    assert "".join(_pieces(BYTE_LEVEL.decode, ids)) == BYTE_LEVEL.decode(ids)


def _word_marks() -> Tokenizer:
    words = ["▁the", "▁ring", "s", "▁", "▁of", "<unk>"]
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, words[-1]))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


WORD_MARKS = _word_marks()


@given(st.lists(st.integers(0, 4), max_size=30))
def test_a_tokenizer_that_marks_words_keeps_its_spaces(ids: list[int]) -> None:
    assert "".join(_pieces(WORD_MARKS.decode, ids)) == WORD_MARKS.decode(ids)


@pytest.mark.parametrize("skipped", [0, 1, 5])
def test_ids_without_text_leave_the_text_as_it_is(skipped: int) -> None:
    def decode(ids: Sequence[int]) -> str:
        return WORD_MARKS.decode([one for one in ids if one != 9])

    ids = [0, *[9] * skipped, 1, *[9] * skipped, 2]
    assert "".join(_pieces(decode, ids)) == decode(ids) == "the rings"


def test_the_window_stays_short() -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return _bytes_decode(ids)

    _pieces(decode, list(("long text " * 100).encode()))
    assert longest <= 2
