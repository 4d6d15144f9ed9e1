"""Rebuilds the tokenizer.json that a GGUF file's vocabulary was taken from.

It does not tokenize. Byte-level BPE is done here, and only for pre-tokenizers whose rules are known
exactly; SentencePiece vocabularies in gguf_sentencepiece.py; the others are refused by name.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint import gguf_sentencepiece
from stagelink.checkpoint.gguf_vocabulary import (
    CONTROL,
    HARMLESS,
    NAMED,
    NORMAL,
    PREFIX,
    UNUSED,
    USER_DEFINED,
    added_tokens,
    bad,
    bpe_json,
    ends_of,
    list_of,
    special_ids,
    special_tokens,
    take_tokens,
)
from stagelink.checkpoint.refusal import shown
from stagelink.checkpoint.strict_json import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.checkpoint.tokenizer import SpecialTokens

_KINDS = frozenset((NORMAL, CONTROL, USER_DEFINED, UNUSED))

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_WITH_REGEX = _BYTE_LEVEL | {"use_regex": True}
_WITHOUT_REGEX = _BYTE_LEVEL | {"use_regex": False}
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(numbers: str) -> dict[str, Any]:
    pattern = {"Regex": _WORDS % numbers}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


@dataclasses.dataclass(frozen=True, slots=True)
class _Rules:
    """How text is cut before BPE, and the settings that go with it in the original tokenizer."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2 = _Rules((_WITH_REGEX,))
_LLAMA3 = _Rules((_split("{1,3}"), _WITHOUT_REGEX), ignore_merges=True, adds_bos=True)
_PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "smollm": _Rules(({"type": "Digits", "individual_digits": True}, _WITH_REGEX)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _Rules((_split(""), _WITHOUT_REGEX), normalizer={"type": "NFC"}),
}

# The scores of another tokenizer model.
_HARMLESS = (*HARMLESS, "scores")


def rebuild(values: Mapping[str, Any], where: Path) -> tuple[bytes, SpecialTokens]:
    """Return a canonical tokenizer.json and what goes with it.

    Raises:
        CheckpointError: ``tokenizer_model``, ``pre_tokenizer`` or ``tokenizer``.
    """
    own = {
        key.removeprefix(PREFIX): value for key, value in values.items() if key.startswith(PREFIX)
    }
    if own.get("model") == gguf_sentencepiece.MODEL:
        value, special = gguf_sentencepiece.rebuild(own, where)
        return canonical(value), special
    rules = _rules(own, where)
    tokens, kinds, merges = _lists(own, where)
    ids = special_ids(own, len(tokens), where)
    around = ends_of(own, ids, tokens, adds_bos=rules.adds_bos, where=where)
    value = bpe_json(
        tokens,
        merges,
        added=added_tokens(tokens, kinds, frozenset((CONTROL,)), frozenset((USER_DEFINED,))),
        normalizer=rules.normalizer,
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(rules.steps)},
        post_processor=around,
        decoder=_WITH_REGEX,
        ignore_merges=rules.ignore_merges,
    )
    return canonical(value), special_tokens(ids, tokens)


def _rules(own: Mapping[str, Any], where: Path) -> _Rules:
    model = own.get("model")
    if model != "gpt2":
        raise bad(
            where,
            "tokenizer_model",
            "byte-level BPE (gpt2) or SentencePiece BPE (llama)",
            shown(model),
        )
    name = own.get("pre")
    if not isinstance(name, str) or name not in _PRE_TOKENIZERS:
        wanted = "one of " + ", ".join(_PRE_TOKENIZERS)
        raise bad(where, "pre_tokenizer", wanted, shown(name))
    # These change how SentencePiece models read text, and mean nothing good here.
    for flag in ("add_space_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        if own.get(flag, False) is not False:
            raise bad(where, "tokenizer", f"{flag} false", shown(own[flag]))
    known = {"model", "pre", "tokens", "token_type", "merges", "add_bos_token", "add_eos_token"}
    known |= {"add_space_prefix", "remove_extra_whitespaces", "escape_whitespaces"}
    for key in own:
        if key not in known and key not in _HARMLESS and key not in NAMED.values():
            raise bad(where, "tokenizer", "only fields that are implemented", shown(PREFIX + key))
    return _PRE_TOKENIZERS[name]


def _lists(own: Mapping[str, Any], where: Path) -> tuple[list[str], list[int], list[list[str]]]:
    tokens, kinds = take_tokens(own, _KINDS, where)
    merges: list[str] = list_of(own, "merges", str, where)
    known = set(tokens)
    pairs = [merge.split(" ") for merge in merges]
    for pair in pairs:
        if len(pair) != 2 or not all(part in known for part in (*pair, "".join(pair))):
            raise bad(where, "tokenizer", "merges of two tokens into one", shown(" ".join(pair)))
    return tokens, kinds, pairs
