"""What a prompt and a chat need of a checkpoint, and which of it is missed first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.checkpoint.conftest import Folder

from stagelink.checkpoint.open import open_checkpoint
from stagelink.config import Task
from stagelink.errors import CheckpointError, ConfigError
from stagelink.node.prompt import check_chat, task_prompt

if TYPE_CHECKING:
    from pathlib import Path

TEXT = Task(prompt="hello")


def test_without_a_tokenizer_the_tokenizer_is_missed_and_not_the_template(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "model")
    folder.tokenizer, folder.tokenizer_config = None, {}
    checkpoint = open_checkpoint(folder.write())
    for call in (lambda: check_chat(checkpoint), lambda: task_prompt(checkpoint, TEXT)):
        with pytest.raises(CheckpointError, match="--prompt-ids") as caught:
            call()
        assert caught.value.reason == "tokenizer_missing"
    assert task_prompt(checkpoint, Task(prompt_ids=(3, 1))) == [3, 1]


def test_without_a_template_there_is_no_chat_and_a_prompt_has_to_be_raw(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "model")
    del folder.tokenizer_config["chat_template"]
    checkpoint = open_checkpoint(folder.write())
    for call in (lambda: check_chat(checkpoint), lambda: task_prompt(checkpoint, TEXT)):
        with pytest.raises(ConfigError, match="--raw") as caught:
            call()
        assert caught.value.reason == "no_chat_template"
    assert task_prompt(checkpoint, Task(prompt="hello", raw=True))


def test_with_both_there_is_a_chat(tmp_path: Path) -> None:
    check_chat(open_checkpoint(Folder(tmp_path / "model").write()))
