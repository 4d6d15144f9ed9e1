"""Rebuilds the tokenizer.json of a SentencePiece BPE vocabulary: Llama 2, Mistral, Gemma.

It does not tokenize. Such a vocabulary has scores and no merges; the merges are every pair of
tokens that makes a third, the best score first, as transformers derives them from the same scores.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.gguf_vocabulary import (
    BYTE,
    CONTROL,
    HARMLESS,
    NAMED,
    NORMAL,
    PREFIX,
    UNKNOWN,
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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.checkpoint.tokenizer import SpecialTokens

# What the file calls this kind of vocabulary.
MODEL: Final = "llama"
_SPACE: Final = "\u2581"
_KINDS: Final = frozenset((NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE))
_KNOWN: Final = frozenset((
    "model", "pre", "tokens", "scores", "token_type", "add_bos_token", "add_eos_token",
    "add_space_prefix", "remove_extra_whitespaces", "merges",
))  # fmt: skip
# A token of a sentence is never longer; each of its places is looked at for a merge.
_MERGED: Final = (NORMAL, USER_DEFINED)
_TOKEN_CHARS_MAX: Final = 512


def rebuild(own: Mapping[str, Any], where: Path) -> tuple[dict[str, Any], SpecialTokens]:
    """Return a tokenizer.json and what goes with it.

    Args:
        own: The metadata under ``tokenizer.ggml.``, without that prefix.
        where: The file, for errors.

    Raises:
        CheckpointError: ``tokenizer``.
    """
    for key in own:
        if key not in _KNOWN and key not in HARMLESS and key not in NAMED.values():
            raise bad(where, "tokenizer", "only fields that are implemented", shown(PREFIX + key))
    tokens, kinds = take_tokens(own, _KINDS, where)
    scores: list[float] = list_of(own, "scores", float, where)
    if len(scores) != len(tokens) or not all(map(math.isfinite, scores)):
        raise bad(where, "tokenizer", f"{len(tokens)} finite scores", f"{len(scores)} scores")
    if own.get("remove_extra_whitespaces", False) is not False:
        raise bad(where, "tokenizer", "remove_extra_whitespaces false", "true")
    begins = own.get("add_space_prefix", True)
    if type(begins) is not bool:
        raise bad(where, "tokenizer", "add_space_prefix true or false", shown(begins))
    _check_bytes(tokens, kinds, where)
    ids = special_ids(own, len(tokens), where)
    unknown = ids.get("unknown_token_id", kinds.index(UNKNOWN) if UNKNOWN in kinds else None)
    special = frozenset((CONTROL, UNKNOWN))
    value = bpe_json(
        tokens,
        _merges(tokens, kinds, scores),
        added=added_tokens(tokens, kinds, special, frozenset((USER_DEFINED,))),
        normalizer=_normalizer(begins=begins),
        pre_tokenizer=None,
        post_processor=ends_of(own, ids, tokens, adds_bos=True, where=where),
        decoder=_decoder(begins=begins),
        unk_token=None if unknown is None else tokens[unknown],
        byte_fallback=True,
    )
    return value, special_tokens(ids, tokens)


def _check_bytes(tokens: list[str], kinds: list[int], where: Path) -> None:
    found = {token for token, kind in zip(tokens, kinds, strict=True) if kind == BYTE}
    missing = {f"<0x{byte:02X}>" for byte in range(256)} ^ found
    if missing:
        wanted = "a token for each of the 256 bytes"
        raise bad(where, "tokenizer", wanted, f"{len(found)} ({shown(min(missing))} differs)")


def _merges(tokens: list[str], kinds: list[int], scores: list[float]) -> list[list[str]]:
    ranks = {token: token_id for token_id, token in enumerate(tokens)}
    found: list[tuple[float, int, int, list[str]]] = []
    for token, kind, score in zip(tokens, kinds, scores, strict=True):
        if kind not in _MERGED or not 2 <= len(token) <= _TOKEN_CHARS_MAX:
            continue
        for at in range(1, len(token)):
            left, right = ranks.get(token[:at]), ranks.get(token[at:])
            if left is not None and right is not None:
                found.append((-score, left, right, [token[:at], token[at:]]))
    found.sort(key=lambda one: one[:3])
    return [pair for _, _, _, pair in found]


def _normalizer(*, begins: bool) -> dict[str, Any]:
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    if not begins:
        return spaces
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, spaces]}


def _decoder(*, begins: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if begins:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
