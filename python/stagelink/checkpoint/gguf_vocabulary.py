"""What every GGUF vocabulary has, whatever its model: tokens, their types, special ids, the ends.

It tokenizes nothing and knows no model; ``gguf_tokenizer.py`` and ``gguf_sentencepiece.py`` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.limits import VOCAB_MAX
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.tokenizer import SpecialTokens

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.errors import CheckpointError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
PREFIX = "tokenizer.ggml."
_ADVICE = "use the safetensors form of this model, which has its tokenizer.json"

NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Ids of tokens that only templates and editors use, and a flag that `ends_of` looks at.
HARMLESS = (
    "add_sep_token", "cls_token_id", "eom_token_id", "eot_token_id", "fim_mid_token_id",
    "fim_pad_token_id",
    "fim_pre_token_id", "fim_rep_token_id", "fim_sep_token_id", "fim_suf_token_id",
    "mask_token_id", "middle_token_id", "prefix_token_id", "seperator_token_id",
    "suffix_token_id", "token_type_count",
)  # fmt: skip


def take_tokens(
    own: Mapping[str, Any], allowed: frozenset[int], where: Path
) -> tuple[list[str], list[int]]:
    """Return the tokens, each once, and their types, all of them in ``allowed``."""
    tokens: list[str] = list_of(own, "tokens", str, where)
    kinds: list[int] = list_of(own, "token_type", int, where)
    if not 1 <= len(tokens) <= VOCAB_MAX or len(set(tokens)) != len(tokens):
        raise bad(where, "tokenizer", "a list of tokens, each once", f"{len(tokens)} tokens")
    if len(kinds) != len(tokens):
        raise bad(where, "tokenizer", f"{len(tokens)} token types", str(len(kinds)))
    strange = set(kinds) - allowed
    if strange:
        wanted = "token types " + ", ".join(map(str, sorted(allowed)))
        raise bad(where, "tokenizer", wanted, shown(sorted(strange)))
    return tokens, kinds


def end_ids(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ends of text that a GGUF's metadata names, whether its tokenizer is done or not.

    What is no id here is refused where the tokenizer is made.
    """
    named = (values.get(PREFIX + key) for key in _ENDS)
    return tuple(one for one in named if type(one) is int and one >= 0)


def special_tokens(ids: Mapping[str, int], tokens: list[str]) -> SpecialTokens:
    """Return what goes with the tokenizer: ends, begin, and names for templates."""
    return SpecialTokens(
        eos_ids=tuple(ids[key] for key in _ENDS if key in ids),
        bos_id=ids.get("bos_token_id"),
        names={name: tokens[ids[key]] for name, key in NAMED.items() if key in ids},
    )


def ends_of(
    own: Mapping[str, Any],
    ids: Mapping[str, int],
    tokens: list[str],
    *,
    adds_bos: bool,
    where: Path,
) -> dict[str, Any] | None:
    """Return the post processor; ``adds_bos`` is what is meant where the file does not say."""
    if own.get("add_sep_token", False) is not False:
        raise bad(where, "tokenizer", "add_sep_token false", shown(own["add_sep_token"]))
    bos, eos = own.get("add_bos_token", adds_bos), own.get("add_eos_token", False)
    for name, flag in (("add_bos_token", bos), ("add_eos_token", eos)):
        if type(flag) is not bool:
            raise bad(where, "tokenizer", f"{name} true or false", shown(flag))
    return _around(ids, tokens, adds_bos=bos, adds_eos=eos, where=where)


def added_tokens(
    tokens: list[str], kinds: list[int], special: frozenset[int], plain: frozenset[int]
) -> list[dict[str, Any]]:
    """Return the tokens that are found in a text before anything else is done to it."""
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in special,
        }
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in special | plain
    ]


def bpe_json(
    tokens: list[str],
    merges: list[list[str]],
    *,
    added: list[dict[str, Any]],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    post_processor: dict[str, Any] | None,
    decoder: dict[str, Any],
    ignore_merges: bool = False,
    unk_token: str | None = None,
    byte_fallback: bool = False,
) -> dict[str, Any]:
    """Return a tokenizer.json of the model BPE; bytes and unknown tokens are fused or neither."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unk_token,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": byte_fallback,
            "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def special_ids(own: Mapping[str, Any], vocab: int, where: Path) -> dict[str, int]:
    """Return the ids that the file names, all inside the vocabulary."""
    keys = {*NAMED.values(), *_ENDS}
    ids = {key: own[key] for key in keys if key in own}
    for key, token_id in ids.items():
        if type(token_id) is not int or not 0 <= token_id < vocab:
            raise bad(where, "tokenizer", f"{key} inside the vocabulary", shown(token_id))
    return ids


def list_of(own: Mapping[str, Any], key: str, kind: type, where: Path) -> list[Any]:
    """Return the list under ``key``, every element of exactly this type."""
    value = own.get(key)
    if not isinstance(value, list) or any(type(one) is not kind for one in value):
        raise bad(where, "tokenizer", f"a list of {key}", shown(value))
    return value


def _around(
    ids: Mapping[str, int], tokens: list[str], *, adds_bos: bool, adds_eos: bool, where: Path
) -> dict[str, Any] | None:
    """Return the post processor that puts begin and end of text around a text."""
    if not adds_bos and not adds_eos:
        return None
    before = ["bos_token_id"] if adds_bos else []
    after = ["eos_token_id"] if adds_eos else []
    missing = [key for key in before + after if key not in ids]
    if missing:
        raise bad(where, "tokenizer", f"{missing[0]}, since it is added to texts", "none")

    def piece(key: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": tokens[ids[key]], "type_id": 0}}

    single = [*map(piece, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(piece, after)]
    special = {
        tokens[ids[key]]: {"id": tokens[ids[key]], "ids": [ids[key]], "tokens": [tokens[ids[key]]]}
        for key in before + after
    }
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special
    }  # fmt: skip


def bad(where: Path, reason: str, expected: str, got: str) -> CheckpointError:
    """Return the error for a vocabulary."""
    return refuse(reason, where, expected=expected, got=got, advice=_ADVICE)
