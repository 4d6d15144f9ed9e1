"""Tiny checkpoints: the same bytes every time, opened like any other, and small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import read_family
from stagelink_numpy.tiny import END_OF_TEXT, TINY, make_tiny

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize("name", TINY)
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    one, two = make_tiny(tmp_path / "one", name), make_tiny(tmp_path / "two", name)
    other = make_tiny(tmp_path / "other", name, seed=1)
    for file in FILES:
        assert (one / file).read_bytes() == (two / file).read_bytes()
    weights = "model.safetensors"
    assert (one / weights).read_bytes() != (other / weights).read_bytes()
    assert (one / weights).stat().st_size < 2_000_000


@pytest.mark.parametrize("name", TINY)
def test_it_opens_as_the_family_that_it_says(tiny: dict[str, Path], name: str) -> None:
    checkpoint = open_checkpoint(tiny[name])
    family = read_family(checkpoint.config)
    family.check_tensors(checkpoint.tensors)
    assert family.model_type == TINY[name]["model_type"]
    assert family.eos_ids == (END_OF_TEXT,)
    assert family.layers == 8


def test_a_change_of_the_config_changes_the_weights(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path, "qwen2", num_hidden_layers=3, vocab_size=512)
    family = read_family(open_checkpoint(folder).config)
    assert (family.layers, family.vocab) == (3, 512)


def test_a_token_is_a_byte(tiny: dict[str, Path]) -> None:
    tokenizer = open_checkpoint(tiny["llama"]).tokenizer()
    text = "héllo, wörld \u20ac \U0001f600\n"
    assert list(tokenizer.encode(text)) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
