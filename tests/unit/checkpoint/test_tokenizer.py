from __future__ import annotations

import hashlib
import json

import pytest

from stagelink.checkpoint.open import open_checkpoint
from stagelink.checkpoint.strict_json import canonical
from stagelink.errors import CheckpointError

TEXTS = [
    "hello the\n\nhell",
    "12345 and 6",
    "na\u00efve caf\u00e9 \u2603 \U0001f600",
    "a\ttab  two spaces   ",
    "",
]


def tokenizer_of(source):
    return open_checkpoint(source.write(), cache=False).tokenizer()


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        tokenizer_of(folder)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def pieces(tokenizer, text):
    return [tokenizer.decode([one]) for one in tokenizer.encode(text, add_special=False)]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_whole_and_from_the_bytes_of_its_tokens(folder, text):
    tokenizer = tokenizer_of(folder)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(one) for one in ids) == text.encode()


def test_the_truncation_of_a_tokenizer_json_does_not_cut_a_prompt(folder):
    assert folder.tokenizer["truncation"]["max_length"] == 3
    assert len(tokenizer_of(folder).encode("abcdefgh")) == 8


def test_the_digest_of_a_tokenizer_json_is_of_its_values_and_lets_the_parsed_file_go(folder):
    tokenizer = tokenizer_of(folder)
    first = tokenizer.digest()
    assert tokenizer.digest() == first == hashlib.sha256(canonical(folder.tokenizer)).hexdigest()
    assert not [one for one in vars(tokenizer).values() if isinstance(one, dict) and "model" in one]
    folder.tokenizer["truncation"]["max_length"] = 4
    assert tokenizer_of(folder).digest() != first


def test_special_tokens_in_a_text_become_their_ids_and_can_be_kept_or_skipped(folder):
    tokenizer = tokenizer_of(folder)
    ids = tokenizer.encode("<|im_start|>he<|im_end|><tool>", add_special=False)
    assert ids == [1, tokenizer.token_id("he"), 2, tokenizer.token_id("<tool>")]
    assert tokenizer.decode(ids) == "<|im_start|>he<|im_end|><tool>"
    assert tokenizer.decode(ids, skip_special=True) == "he<tool>"


def test_an_id_without_a_token_adds_nothing(folder):
    tokenizer = tokenizer_of(folder)
    assert tokenizer.token_bytes(tokenizer.vocab + 5) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.token(tokenizer.vocab) is None


def test_ends_of_text_come_from_every_file_that_names_one(folder):
    path = folder.write()
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    (path / "config.json").write_text(json.dumps(folder.config | {"eos_token_id": 5}))
    tokenizer = open_checkpoint(path).tokenizer()
    assert tokenizer.eos_ids == (0, 2, 5)
    assert tokenizer.bos_id == 1
    assert tokenizer.special_names == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}


def test_ends_of_text_are_known_where_no_tokenizer_is(folder):
    folder.tokenizer = None
    path = folder.write()
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    checkpoint = open_checkpoint(path)
    assert checkpoint.usable_tokenizer() is None
    assert checkpoint.eos_ids == (0, 2)


@pytest.mark.parametrize("value", [[1, "x"], "2", {"a": 1}, True])
def test_an_end_of_text_that_is_no_id_is_refused_at_the_opening(folder, value):
    path = folder.write()
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert caught.value.reason == "config_field"


@pytest.mark.parametrize("cache", [True, False])
def test_every_end_of_a_gguf_is_known_where_its_tokenizer_is_not_done(make_gguf, cache):
    source = make_gguf(pre="unheard-of")
    source.keys |= {"tokenizer.ggml.eot_token_id": 3}
    path = source.write()
    for _ in range(2):
        checkpoint = open_checkpoint(path, cache=cache)
        assert checkpoint.usable_tokenizer() is None
        assert checkpoint.eos_ids == (2, 3)
        checkpoint.prepare()


def test_a_checkpoint_without_a_tokenizer_opens_and_says_so_when_asked(folder):
    folder.tokenizer = None
    assert refusal(folder) == "tokenizer_missing"


@pytest.mark.parametrize("data", [b"", b"{}", b'{"model": {"type": "BPE"}}', b"\xff\xfe", b"[]"])
def test_a_tokenizer_json_that_is_none_is_refused(folder, data):
    path = folder.write()
    (path / "tokenizer.json").write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path).tokenizer()
    assert caught.value.reason == "tokenizer"
    assert "\n" not in str(caught.value)


def test_a_decoder_that_is_not_byte_exact_is_refused(folder):
    folder.tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    assert refusal(folder) == "tokenizer_decoder"


def test_a_config_that_contradicts_the_tokenizer_is_refused(folder):
    folder.tokenizer_config["added_tokens_decoder"] = {"1": {"content": "<|im_start|>"}}
    tokenizer_of(folder)
    folder.tokenizer_config["added_tokens_decoder"] = {"400": {"content": "<|new|>"}}
    assert refusal(folder) == "tokenizer"
    folder.tokenizer_config["added_tokens_decoder"] = {"x": {"content": "<|new|>"}}
    assert refusal(folder) == "tokenizer"


def test_a_begin_of_text_that_is_asked_for_and_not_added_is_refused(folder):
    folder.tokenizer_config["add_bos_token"] = False
    tokenizer_of(folder)
    folder.tokenizer_config["add_bos_token"] = True
    assert refusal(folder) == "tokenizer"


def test_sentencepiece_bytes_and_spaces_are_known(folder):
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *[f"<0x{n:02X}>" for n in range(256)],
        "\u2581",
        "a",
        "\u2581a",
    ]
    folder.tokenizer |= {
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [["\u2581", "a"]],
        },
    }
    tokenizer = tokenizer_of(folder)
    ids = tokenizer.encode("a \u2603a", add_special=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == " a \u2603a"
    assert tokenizer.decode(ids) == "a \u2603a"


def test_a_gguf_vocabulary_becomes_the_tokenizer_it_was_taken_from(make_gguf, folder):
    rebuilt, original = tokenizer_of(make_gguf(pre="gpt-2")), tokenizer_of(folder)
    assert rebuilt.vocab == original.vocab
    for text in [*TEXTS, "<|im_start|>he<|im_end|><tool>"]:
        assert rebuilt.encode(text) == original.encode(text)
        ids = rebuilt.encode(text)
        assert rebuilt.decode(ids, skip_special=True) == original.decode(ids, skip_special=True)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        # A merge never crosses a cut, so what the merge "he" does shows where the cuts are.
        ("smollm", "he2he", ["he", "2", "he"]),
        ("smollm", "h\u00bde", ["h", "\ufffd", "\ufffd", "e"]),
        ("gpt-2", "hell hell", ["hell", " ", "hell"]),
        ("llama-bpe", " the", [" t", "he"]),
        ("qwen2", " the", [" t", "he"]),
    ],
)
def test_merges_stay_inside_the_words_of_the_pre_tokenizer(make_gguf, pre, text, words):
    assert pieces(tokenizer_of(make_gguf(pre=pre)), text) == words


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("smollm", ["I", "'m", " ", "1", "2", "3", "4", "5", ",", " x", "\n\n ", " y"]),
        ("gpt-2", ["I", "'m", " 12345", ",", " x", "\n\n ", " y"]),
        ("llama-bpe", ["I", "'m", " ", "123", "45", ",", " x", "\n\n", " ", " y"]),
        ("qwen2", ["I", "'m", " ", "1", "2", "3", "4", "5", ",", " x", "\n\n", " ", " y"]),
    ],
)
def test_numbers_spaces_and_lines_are_cut_as_each_pre_tokenizer_does(make_gguf, pre, words):
    tokenizer = tokenizer_of(make_gguf(pre=pre))
    cut = tokenizer._inner.pre_tokenizer.pre_tokenize_str("I'm 12345, x\n\n  y")
    table = {"\u0120": " ", "\u010a": "\n"}
    got = ["".join(table.get(one, one) for one in word) for word, _ in cut]
    assert got == words


def test_begin_of_text_is_added_where_the_file_or_its_kind_says_so(make_gguf):
    llama3 = tokenizer_of(make_gguf(pre="llama-bpe"))
    assert llama3.encode("he")[0] == 1
    assert llama3.encode("he", add_special=False)[0] != 1
    assert tokenizer_of(make_gguf(pre="qwen2")).encode("he")[0] != 1
    source = make_gguf(pre="qwen2")
    source.keys |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    ids = tokenizer_of(source).encode("he")
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 3)


def test_every_end_of_turn_token_of_a_gguf_ends_a_text(make_gguf):
    source = make_gguf()
    source.keys |= {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 262}
    assert tokenizer_of(source).eos_ids == (0, 2, 262)
