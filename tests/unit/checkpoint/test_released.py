"""What a checkpoint lets go when text is no longer wanted, and how it comes back."""

from __future__ import annotations

import gc
import weakref

import pytest

from stagelink.checkpoint.gguf_metadata import Metadata
from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import CheckpointError

TEXT = "hello the <tool>"
TOKENS = "tokenizer.ggml.tokens"


def again_and_again(checkpoint):
    """Release and ask twice; return whether each tokenizer died, and what the last one says."""
    died = []
    for _ in range(2):
        known = weakref.ref(checkpoint.tokenizer())
        checkpoint.release_tokenizer()
        gc.collect()
        died.append(known() is None)
    return died, checkpoint.tokenizer().encode(TEXT)


def test_the_tokenizer_of_a_folder_is_let_go_and_loaded_again(folder):
    checkpoint = open_checkpoint(folder.write())
    before = checkpoint.tokenizer().encode(TEXT)
    assert again_and_again(checkpoint) == ([True, True], before)


@pytest.mark.parametrize("way", ["direct", "not yet converted", "converted"])
def test_the_tokenizer_of_a_gguf_is_let_go_and_made_again(make_gguf, way):
    path = make_gguf().write()
    if way == "converted":
        open_checkpoint(path).prepare()
    checkpoint = open_checkpoint(path, cache=way != "direct")
    before = checkpoint.tokenizer().encode(TEXT)
    assert again_and_again(checkpoint) == ([True, True], before)


@pytest.mark.parametrize("cache", [False, True])
def test_a_gguf_converted_after_its_words_were_let_go_has_its_tokenizer(make_gguf, cache):
    path = make_gguf().write()
    checkpoint = open_checkpoint(path, cache=cache)
    before = checkpoint.tokenizer().encode(TEXT)
    checkpoint.release_tokenizer()
    checkpoint.prepare()
    assert open_checkpoint(path, cache=cache).tokenizer().encode(TEXT) == before


@pytest.mark.parametrize("converted", [False, True])
def test_no_word_of_a_gguf_is_held_after_it_was_let_go(make_gguf, converted):
    path = make_gguf().write()
    if converted:
        open_checkpoint(path).prepare()
    checkpoint = open_checkpoint(path)
    values = checkpoint.gguf.values
    keys = list(values)
    checkpoint.release_tokenizer()
    path.unlink()
    # All else is there without the file; only the words have to be read again.
    assert values["llama.block_count"] == 2
    assert list(values) == keys
    assert TOKENS in values
    with pytest.raises(CheckpointError) as caught:
        values[TOKENS]
    assert caught.value.reason == "file_missing"


def test_words_are_not_taken_from_a_file_that_is_another_one_now(make_gguf):
    path = make_gguf().write()
    checkpoint = open_checkpoint(path, cache=False)
    checkpoint.release_tokenizer()
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data.replace(b"<tool>", b"<fool>"))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.tokenizer()
    assert caught.value.reason == "file_changed"


def test_metadata_is_read_again_once_and_only_for_what_was_let_go():
    calls = []
    whole = {"a": [1], TOKENS: ["x"], "tokenizer.ggml.model": "gpt2"}

    def again():
        calls.append(1)
        return dict(whole)

    values = Metadata(whole, again)
    assert values[TOKENS] == ["x"]
    values.release_words()
    assert (values["a"], values["tokenizer.ggml.model"], len(values)) == ([1], "gpt2", 3)
    assert "b" not in values
    assert values.get("b") is None
    assert calls == []
    assert dict(values) == whole
    assert values[TOKENS] == ["x"]
    assert calls == [1]
