"""Rebuilds the tokenizer.json that a GGUF file's vocabulary was taken from.

It does not tokenize. Byte-level BPE is done here, and only for pre-tokenizers whose rules are known
exactly (gguf_pre_tokenizers.py); SentencePiece is gguf_sentencepiece.py; others are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.checkpoint import gguf_sentencepiece
from stagelink.checkpoint.gguf_pre_tokenizers import PRE_TOKENIZERS, WITH_REGEX, Rules
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

_MERGES_AT_ONCE = 4096

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
        [],
        added=added_tokens(tokens, kinds, frozenset((CONTROL,)), frozenset((USER_DEFINED,))),
        normalizer=rules.normalizer,
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(rules.steps)},
        post_processor=around,
        decoder=WITH_REGEX,
        ignore_merges=rules.ignore_merges,
    )
    return _with_merges(canonical(value), merges), special_tokens(ids, tokens)


def _with_merges(data: bytes, merges: list[str]) -> bytes:
    """Return the canonical JSON of a tokenizer without merges, with them in their place.

    As lists of two texts, all at once, they would take more than everything else of a tokenizer.
    """
    # Inside a text the quotes would be escaped.
    before, empty, after = data.partition(b'"merges":[]')
    begins = range(0, len(merges), _MERGES_AT_ONCE)
    parts = [
        canonical([merge.split(" ") for merge in merges[begin : begin + _MERGES_AT_ONCE]])[1:-1]
        for begin in begins
    ]
    return b"".join((before, empty[:-1], b",".join(parts), b"]", after))


def _rules(own: Mapping[str, Any], where: Path) -> Rules:
    model = own.get("model")
    if model != "gpt2":
        raise bad(
            where,
            "tokenizer_model",
            "byte-level BPE (gpt2) or SentencePiece BPE (llama)",
            shown(model),
        )
    name = own.get("pre")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        wanted = "one of " + ", ".join(PRE_TOKENIZERS)
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
    return PRE_TOKENIZERS[name]


def _lists(own: Mapping[str, Any], where: Path) -> tuple[list[str], list[int], list[str]]:
    tokens, kinds = take_tokens(own, _KINDS, where)
    merges: list[str] = list_of(own, "merges", str, where)
    known = set(tokens)
    for merge in merges:
        pair = merge.split(" ")
        if len(pair) != 2 or not all(part in known for part in (*pair, "".join(pair))):
            raise bad(where, "tokenizer", "merges of two tokens into one", shown(merge))
    return tokens, kinds, merges
