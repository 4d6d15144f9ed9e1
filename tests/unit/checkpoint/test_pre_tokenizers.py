"""Byte-level vocabularies of GGUF files cut text as llama.cpp does, for each known pre-tokenizer.

It looks at ids alone; what stands around a tokenizer is in ``test_tokenizer.py``.
"""

from __future__ import annotations

import itertools
import json
import random
import time
import unicodedata

import gguf
import pytest
import tokenizers
from tests.unit.checkpoint.many_texts import many_texts

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
RUN, RUN_SECONDS = 20_000, 3.0
BEGIN, END, TOOL = "<|begin|>", "<|end|>", "<|tool|>"


def joined(seed, count):
    rng = random.Random(seed)
    return ["".join(rng.choices(PARTS, k=rng.randint(2, 8))) for _ in range(count)]


TEXTS = [
    *PARTS,
    "",
    "|",
    "|| |a|",
    f"he{BEGIN} x{TOOL}y {END}",
    *joined(5, 400),
    *many_texts(11, 600),
]


def has_mark_or_case_beyond_ascii(text):
    kinds = [unicodedata.category(one) for one in text if one > "\x7f"]
    return any(kind in ("Lu", "Ll", "Lt") or kind.startswith("M") for kind in kinds)


def has_wide_space(text):
    return any(one.isspace() and one > "\u1000" for one in text)


def has_wide_space_or_number_of_two_digits(text):
    pairs = itertools.pairwise(text)
    return has_wide_space(text) or any(_numeric(a) and _numeric(b) for a, b in pairs)


def _numeric(one):
    return unicodedata.category(one).startswith("N")


# What a text has wherever llama.cpp cuts it otherwise than the model's own pattern does. The last:
# each digit is a word of its own to the model, and no token of its vocabulary has two.
PARTS_WITH = {
    "gpt-4o": has_mark_or_case_beyond_ascii,
    "llama4": has_mark_or_case_beyond_ascii,
    "tekken": has_mark_or_case_beyond_ascii,
    "deepseek-coder": has_wide_space,
    "deepseek-llm": has_wide_space_or_number_of_two_digits,
}
ALIKE = [name for name in PRE_TOKENIZERS if name not in PARTS_WITH]


@pytest.fixture(scope="module")
def vocabulary():
    """Tokens, types and merges that cross every cut, so that a wrong cut shows in the ids."""
    whole = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = whole
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=12000, show_progress=False, initial_alphabet=whole.alphabet(), max_token_length=9
    )
    plain = (text for text in TEXTS if BEGIN not in text)
    trained.train_from_iterator([*plain, *joined(6, 700)], trainer)
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


def cut_otherwise(path, vocabulary, name):
    """Return the texts that llama.cpp gives other ids for."""
    values = metadata(vocabulary, name)
    model, tokenizer = theirs(path, values), ours(values)
    # llama.cpp never composes characters; a tokenizer that does is given what it makes.
    composed = PRE_TOKENIZERS[name].normalizer is not None
    texts = [unicodedata.normalize("NFC", text) if composed else text for text in TEXTS]
    try:
        # A begin of text of its own is added by both, where the file does not say.
        return [
            text
            for text in texts
            if tokenizer.encode(text) != model.tokenize(text.encode(), special=True)
        ]
    finally:
        model.close()


@pytest.mark.parametrize("name", ALIKE)
def test_llama_cpp_cuts_the_same_texts_into_the_same_ids(tmp_path, vocabulary, name):
    assert cut_otherwise(tmp_path / "m.gguf", vocabulary, name) == []


@pytest.mark.parametrize("name", PARTS_WITH)
def test_llama_cpp_parts_from_the_published_pattern_only_at_what_is_listed(
    tmp_path, vocabulary, name
):
    parted = cut_otherwise(tmp_path / "m.gguf", vocabulary, name)
    assert [text for text in parted if not PARTS_WITH[name](text)] == []
    # Where it no longer parts, the list and docs/checkpoints.md 3 are to be shortened.
    assert parted


# The released patterns, as the alternatives that they are made of.
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE, REST = r"[^\r\n\p{L}\p{N}]?", [r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
O200K = [f"{BEFORE}{UPPER}*{LOWER}+{ENDING}", f"{BEFORE}{UPPER}+{LOWER}*{ENDING}", r"\p{N}{1,3}"]
NEMO = [f"{BEFORE}{UPPER}*{LOWER}+", f"{BEFORE}{UPPER}+{LOWER}*", r"\p{N}"]
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# In turn: each cuts what the ones before left whole.
PUBLISHED = {
    "gpt-4o": ["|".join([*O200K, SIGNS, *REST])],
    "tekken": ["|".join([*NEMO, SIGNS, *REST])],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_pattern_in_another_regex_library_gives_the_same_ids(vocabulary, name):
    regex = pytest.importorskip("regex", reason="regex is not installed")
    tokens, _, merges = vocabulary
    tokenizer = ours(metadata(vocabulary, name))
    merged = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {token: n for n, token in enumerate(tokens)},
            [tuple(pair.split(" ")) for pair in merges],
        )
    )
    merged.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    for text in TEXTS:
        if BEGIN in text:
            continue
        words = [text]
        for pattern in PUBLISHED[name]:
            cut = (regex.split(f"({pattern})", word) for word in words)
            words = [piece for pieces in cut for piece in pieces if piece]
        wanted = [one for word in words for one in merged.encode(word).ids]
        assert tokenizer.encode(text, add_special=False) == wanted, text


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_text_comes_back_whole_but_for_characters_that_are_composed(vocabulary, name):
    tokenizer = ours(metadata(vocabulary, name))
    composed = PRE_TOKENIZERS[name].normalizer is not None
    for text in TEXTS:
        wanted = unicodedata.normalize("NFC", text) if composed else text
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == wanted


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_a_long_run_of_one_character_takes_no_time_that_grows_with_its_square(vocabulary, name):
    tokenizer = ours(metadata(vocabulary, name))
    before = time.process_time()
    for run in (" ", "\t", "\n", "A", "a", "1", "!", "\u0301", "\u4f60", "\u3000"):
        for text in (RUN * run, RUN * run + "\u4f60", RUN * run + "x", RUN * run + "\n"):
            tokenizer.encode(text)
    assert time.process_time() - before < RUN_SECONDS


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@pytest.mark.parametrize(("begins", "ends"), [(False, True), (True, False)])
def test_begin_and_end_of_text_are_added_as_the_file_says(vocabulary, name, begins, ends):
    more = {"add_bos_token": begins, "add_eos_token": ends, "eot_token_id": len(vocabulary[0]) - 1}
    tokenizer = ours(metadata(vocabulary, name, **more))
    ids, bare = tokenizer.encode("the ring"), tokenizer.encode("the ring", add_special=False)
    assert ids == [tokenizer.bos_id] * begins + bare + ([len(vocabulary[0]) - 2] * ends)
    assert tokenizer.eos_ids == (len(vocabulary[0]) - 2, len(vocabulary[0]) - 1)


@pytest.mark.parametrize("name", ["default", "falcon", "nothing"])
def test_a_name_without_known_rules_is_refused(vocabulary, name):
    with pytest.raises(CheckpointError) as caught:
        ours(metadata(vocabulary, name))
    assert caught.value.reason == "pre_tokenizer"
    assert name in str(caught.value)
