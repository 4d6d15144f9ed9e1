"""SentencePiece vocabularies of GGUF files cut text as llama.cpp does with the same file."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
import tokenizers
from tests.unit.checkpoint.gguf_families import metadata, to_gguf
from tests.unit.checkpoint.test_gguf_families import CASES

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import CheckpointError

SPACE = "\u2581"
CORPUS = [
    "The ring goes round and round, one row a token a boundary.",
    "A stage holds layers; the lead holds the embedding and the head.",
    "She sells sea shells on the sea shore, and the shells she sells are sea shells.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "1234 567 89, 3.14159 and 2,718,281",
]
TEXTS = [
    *CORPUS,
    "hello",
    " leading and  two  spaces ",
    "tabs\tand\nnew lines\n\n",
    "unknown: \u4f60\u597d \U0001f600 \u00e9",
    "the<s>the</s> and <tool>tool",
    "",
    "   ",
]


def vocabulary():
    """Train pieces on the corpus; return tokens, scores and types as a converter writes them."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.normalizer = tokenizers.normalizers.Replace(" ", SPACE)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False)
    trained.train_from_iterator([f" {line}" for line in CORPUS], trainer)
    model = json.loads(trained.to_str())["model"]
    merged = ["".join(pair) for pair in model["merges"]]
    letters = sorted(piece for piece in model["vocab"] if len(piece) == 1)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3] + [6] * 256
    scores = [0.0] * len(tokens)
    tokens += [*merged, *letters, "<tool>"]
    kinds += [1] * (len(merged) + len(letters)) + [4]
    scores += [float(-rank) for rank in range(len(merged) + len(letters))] + [0.0]
    return tokens, scores, kinds


def write(path, change=None, **replaced):
    """Write a tiny llama with this vocabulary; ``replaced`` sets lists of it otherwise."""
    tokens, scores, kinds = vocabulary()
    _, config, _ = CASES["llama"]
    config = config | {"vocab_size": len(tokens)}
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata("llama", config).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(replaced.get("tokens", tokens))
    writer.add_token_scores(replaced.get("scores", scores))
    writer.add_token_types(replaced.get("kinds", kinds))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if change is not None:
        change(writer)
    random = np.random.default_rng(1)
    shapes = read_family(config).all_tensors()
    weights = {name: random.normal(0, 0.1, s).astype(np.float32) for name, s in shapes.items()}
    for name, array in to_gguf("llama", config, weights).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_texts_come_back_and_ids_are_those_of_the_pieces(tmp_path):
    tokenizer = open_checkpoint(write(tmp_path / "m.gguf"), cache=False).tokenizer()
    tokens = vocabulary()[0]
    assert (tokenizer.vocab, tokenizer.bos_id, tokenizer.eos_ids) == (len(tokens), 1, (2,))
    assert set(tokenizer.special_names) == {"bos_token", "eos_token", "unk_token"}
    for text in TEXTS:
        if "<" not in text:
            ids = tokenizer.encode(text)
            assert ids[0] == 1
            assert tokenizer.decode(ids, skip_special=True) == text
    assert tokenizer.encode("\u4f60", add_special=False)[-3:] == [3 + b for b in "\u4f60".encode()]


@pytest.mark.parametrize("prefix", [True, False])
def test_llama_cpp_cuts_the_same_texts_into_the_same_ids(tmp_path, prefix):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = write(tmp_path / "m.gguf", lambda writer: writer.add_add_space_prefix(prefix))
    tokenizer = open_checkpoint(path, cache=False).tokenizer()
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    try:
        for text in TEXTS:
            theirs = model.tokenize(text.encode(), add_bos=True, special=True)
            assert tokenizer.encode(text) == theirs, text
    finally:
        model.close()


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        (lambda w: w.add_remove_extra_whitespaces(True), {}),
        (lambda w: w.add_precompiled_charsmap(b"x"), {}),
        (None, {"scores": [0.0] * 7}),
        (None, {"kinds": [1] * len(vocabulary()[0])}),
        (None, {"kinds": [9, *vocabulary()[2][1:]]}),
        (lambda w: w.add_string("tokenizer.ggml.add_bos_token", "yes"), {}),
    ],
)
def test_a_vocabulary_that_is_not_one_is_refused(tmp_path, change, replaced):
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", change, **replaced), cache=False)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.tokenizer()
    assert caught.value.reason == "tokenizer"
    assert "\n" not in str(caught.value)
