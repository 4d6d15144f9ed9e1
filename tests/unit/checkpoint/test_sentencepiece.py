"""SentencePiece vocabularies of GGUF files cut text as SentencePiece and llama.cpp do.

A small vocabulary is written by hand, a larger one trained by SentencePiece itself.
"""

from __future__ import annotations

import io
import json
import random

import gguf
import numpy as np
import pytest
import tokenizers
from tests.unit.checkpoint.gguf_families import metadata, to_gguf
from tests.unit.checkpoint.many_texts import many_texts
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
    config = config | {"vocab_size": len(replaced.get("tokens", tokens))}
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
    drawn = np.random.default_rng(1)
    shapes = read_family(config).all_tensors()
    weights = {name: drawn.normal(0, 0.1, s).astype(np.float32) for name, s in shapes.items()}
    for name, array in to_gguf("llama", config, weights).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_texts_come_back_and_ids_are_those_of_the_pieces(tmp_path):
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf"), cache=False)
    identity = checkpoint.tokenizer_identity()
    tokenizer = checkpoint.tokenizer()
    assert identity == tokenizer.identity()
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


MANY = [*(text for text in TEXTS if "<" not in text), *many_texts(12, 800)]


def with_named_tokens():
    """Put tokens that are found before all others, spaces around them, into half of the texts."""
    rng = random.Random(4)
    named = ["<tool>", " <tool>", "<tool> ", "<s>", "</s> ", "<unk>", "<0x41>", "<s> <s>"]
    for text in MANY[:400]:
        at = rng.randint(0, len(text))
        yield text[:at] + rng.choice(named) + text[at:]


@pytest.fixture(scope="module", params=[True, False], ids=["begins", "bare"])
def trained(request):
    """Train pieces on the texts; whether a space is put before a text is the parameter."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in MANY for line in text.splitlines() if line),
        model_writer=out, model_type="bpe", vocab_size=2400, character_coverage=0.98,
        byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=request.param,
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True,
        user_defined_symbols=["<tool>", 3 * SPACE], num_threads=1, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue()), request.param


def as_gguf(path, trained, *, plain_spaces):
    """Write the trained pieces; tokens of spaces with them or, as newer files, plain ones."""
    model, begins = trained
    tokens, scores, kinds = [], [], []
    for n in range(model.get_piece_size()):
        piece = model.id_to_piece(n)
        named = piece in ("<tool>", 3 * SPACE)
        tokens.append(piece.replace(SPACE, " ") if named and plain_spaces else piece)
        scores.append(model.get_score(n))
        kinds.append(
            2 if model.is_unknown(n) else 3 if model.is_control(n) else 6 if model.is_byte(n)
            else 4 if named else 1
        )  # fmt: skip
    return write(
        path, lambda w: w.add_add_space_prefix(begins), tokens=tokens, scores=scores, kinds=kinds
    )


@pytest.mark.parametrize("plain_spaces", [False, True])
def test_many_texts_get_the_ids_of_llama_cpp(tmp_path, trained, plain_spaces):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = as_gguf(tmp_path / "m.gguf", trained, plain_spaces=plain_spaces)
    tokenizer = open_checkpoint(path, cache=False).tokenizer()
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    try:
        for text in [*MANY, *with_named_tokens()]:
            theirs = model.tokenize(text.encode(), add_bos=True, special=True)
            assert tokenizer.encode(text) == theirs, text
    finally:
        model.close()


def test_many_texts_get_the_ids_of_sentencepiece_itself(tmp_path, trained):
    path = as_gguf(tmp_path / "m.gguf", trained, plain_spaces=False)
    tokenizer = open_checkpoint(path, cache=False).tokenizer()
    for text in MANY:
        ids = tokenizer.encode(text, add_special=False)
        assert ids == trained[0].encode(text), text
        assert tokenizer.decode(ids) == text


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
