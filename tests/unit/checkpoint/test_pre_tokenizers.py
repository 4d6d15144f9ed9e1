"""Byte-level vocabularies of GGUF files cut text as llama.cpp does, for each known pre-tokenizer.

It looks at ids alone; what stands around a tokenizer is in ``test_tokenizer.py``.
"""

from __future__ import annotations

import json
import random
import unicodedata

import gguf
import pytest
import tokenizers

from stagelink.checkpoint.gguf_pre_tokenizers import PRE_TOKENIZERS
from stagelink.checkpoint.gguf_tokenizer import rebuild
from stagelink.checkpoint.tokenizer import Tokenizer
from stagelink.errors import CheckpointError

# fmt: off
PARTS = [
    "I'm", "don't", "WE'LL", "it'S", "they've", " the", " Ring", " HTTPServer", "camelCaseWord",
    "McDonald", "x", "7", "42", "2024", "1234567", "3.14", "\u00bd", "\u0665\u0666", "\u00b2",
    "\u4f60\u597d", "\u4e16\u754c\u4eba", "\u3053\u3093\u306b\u3061", "\u30ab\u30bf\u30ab\u30ca",
    "\ud55c\uad6d\uc5b4", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u0434\u043e\u043c",
    "\u041c\u0413\u0423", "\u00c9cole", "na\u00efve", "\u00e4\u00d6", "e\u0301", "a\u0308\u0323",
    "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e20\u0e32\u0e29\u0e32",
    "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc", "\U0001f600", "\U0001f468\u200d\U0001f469",
    "\u2603\ufe0f", "\n", "\n\n", "\r\n", "\t", "\t\t", " ", "  ", "    ", "\u00a0", "\u3000",
    "...", "!?", "--", "==>", "://", "https://a.b/c?d=e&f#g", "def f(x):\n",
    "    return x[0] += 1\n", "// note", "/*", "*/", "_under_score", "$5", "\u20ac9", "a/b\n/",
    "`~^<>", "\u201cq\u201d", "\u3002\uff0c", "#tag", "@me", "C++", "\u01c5x", "\u02b0a",
]
# fmt: on
BEGIN, END, TOOL = "<|begin|>", "<|end|>", "<|tool|>"


def joined(seed, count):
    rng = random.Random(seed)
    return ["".join(rng.choices(PARTS, k=rng.randint(2, 8))) for _ in range(count)]


TEXTS = [*PARTS, "", "|", "|| |a|", f"he{BEGIN} x{TOOL}y {END}", *joined(5, 400)]


@pytest.fixture(scope="module")
def vocabulary():
    """Tokens, types and merges that cross every cut, so that a wrong cut shows in the ids."""
    whole = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = whole
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1100, show_progress=False, initial_alphabet=whole.alphabet(), max_token_length=9
    )
    trained.train_from_iterator([*PARTS, *joined(6, 700)], trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), BEGIN, END, TOOL]
    kinds = [1] * (len(tokens) - 3) + [3, 3, 4]
    return tokens, kinds, [" ".join(pair) for pair in model["merges"]]


def metadata(vocabulary, name, **more):
    tokens, kinds, merges = vocabulary
    own = {"model": "gpt2", "pre": name, "tokens": tokens, "token_type": kinds, "merges": merges}
    own |= {"bos_token_id": len(tokens) - 3, "eos_token_id": len(tokens) - 2}
    return {f"tokenizer.ggml.{key}": value for key, value in (own | more).items()}


def ours(values):
    return Tokenizer(*rebuild(values, "m.gguf"), "m.gguf")


def theirs(path, values):
    """Open a file of this metadata, without tensors, in llama.cpp."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 8)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    kinds = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
    for key, value in values.items():
        kinds.get(type(value), writer.add_array)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return llama_cpp.Llama(str(path), vocab_only=True, verbose=False, n_ctx=8)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_llama_cpp_cuts_the_same_texts_into_the_same_ids(tmp_path, vocabulary, name):
    values = metadata(vocabulary, name)
    model, tokenizer = theirs(tmp_path / "m.gguf", values), ours(values)
    try:
        for text in TEXTS:
            # llama.cpp never composes characters; a tokenizer that does is given what it makes.
            if PRE_TOKENIZERS[name].normalizer is not None:
                text = unicodedata.normalize("NFC", text)  # noqa: PLW2901
            # A begin of text of its own is added by both, where the file does not say.
            assert tokenizer.encode(text) == model.tokenize(text.encode(), special=True), text
    finally:
        model.close()


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_text_comes_back_whole_but_for_characters_that_are_composed(vocabulary, name):
    tokenizer = ours(metadata(vocabulary, name))
    composed = PRE_TOKENIZERS[name].normalizer is not None
    for text in TEXTS:
        wanted = unicodedata.normalize("NFC", text) if composed else text
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == wanted


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@pytest.mark.parametrize(("begins", "ends"), [(False, True), (True, False)])
def test_begin_and_end_of_text_are_added_as_the_file_says(vocabulary, name, begins, ends):
    more = {"add_bos_token": begins, "add_eos_token": ends, "eot_token_id": len(vocabulary[0]) - 1}
    tokenizer = ours(metadata(vocabulary, name, **more))
    ids, bare = tokenizer.encode("the ring"), tokenizer.encode("the ring", add_special=False)
    assert ids == [tokenizer.bos_id] * begins + bare + ([len(vocabulary[0]) - 2] * ends)
    assert tokenizer.eos_ids == (len(vocabulary[0]) - 2, len(vocabulary[0]) - 1)


@pytest.mark.parametrize("name", ["default", "gpt-4o", "tekken", "deepseek-coder", "nothing"])
def test_a_name_that_llama_cpp_cuts_otherwise_or_does_not_know_is_refused(vocabulary, name):
    with pytest.raises(CheckpointError) as caught:
        ours(metadata(vocabulary, name))
    assert caught.value.reason == "pre_tokenizer"
    assert name in str(caught.value)
