"""From a file of prompts to token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stagelink.checkpoint.strict_json import read_bounded
from stagelink.errors import CheckpointError, ConfigError
from stagelink.verify.prompts import default_prompts, parse_prompts, shaped

if TYPE_CHECKING:
    from pathlib import Path


def _letters(text: str) -> list[int]:
    return list(text.encode())


def test_a_line_is_text_or_token_ids() -> None:
    read = parse_prompts("ab\n\n[1, 2]\n[no ids]\n", _letters, "file")
    assert read == [(97, 98), (1, 2), tuple(b"[no ids]")]


@pytest.mark.parametrize("text", ["", "\n \n", "[1]\n" * 65])
def test_no_prompts_and_too_many_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_prompts(text, _letters, "file")
    assert caught.value.reason == "prompts"


@pytest.mark.parametrize(
    "line", ["[1.5]", "[1, true]", "[1, 2", "[1, [2]]", f"[{'1' * 5000}]", "[1e3]", "[null]"]
)
def test_what_is_meant_as_token_ids_and_is_none_is_refused_not_read_as_text(line: str) -> None:
    with pytest.raises(ConfigError, match="file line 1") as caught:
        parse_prompts(line, _letters, "file")
    assert caught.value.reason == "prompts"


@pytest.mark.parametrize("line", ["[" * 100_000 + "a", "[INST] write", "[1] Smith, J. (2020)"])
def test_text_may_begin_with_a_bracket(line: str) -> None:
    assert parse_prompts(line, _letters, "file") == [tuple(line.encode())]


def test_text_without_a_tokenizer_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="file line 2"):
        parse_prompts("[1, 2]\nab", None, "file")


@pytest.mark.parametrize("prompt", [(), (16,), (-1,)])
def test_a_prompt_outside_the_vocabulary_is_refused(prompt: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        shaped([prompt], vocab=16, positions=8)
    assert caught.value.reason == "prompts"


def test_without_a_tokenizer_the_prompts_are_ids_of_chance_and_always_the_same() -> None:
    made = default_prompts(None, 16, 1)
    assert made == default_prompts(None, 16, 1)
    assert all(0 <= one < 16 for prompt in made for one in prompt)


def test_the_texts_that_come_along_are_long_enough_for_a_mean() -> None:
    assert max(len(prompt) for prompt in default_prompts(_letters, 256, 1)) > 900


def test_a_folder_is_no_file_of_bytes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_bounded(tmp_path, 10)
    assert caught.value.reason == "file_kind"
