"""Rebuilds the tokenizer.json that a GGUF file's vocabulary was taken from.

It does not tokenize. Only byte-level BPE is done, and only for pre-tokenizers whose rules are known
exactly; the others are refused by name.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.limits import VOCAB_MAX
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.strict_json import canonical
from stagelink.checkpoint.tokenizer import SpecialTokens

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.errors import CheckpointError

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_ADVICE = "use the safetensors form of this model, which has its tokenizer.json"

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

# Ids of tokens that only templates and editors use, and the scores of another tokenizer model.
_HARMLESS = (
    "cls_token_id", "eom_token_id", "eot_token_id", "fim_mid_token_id", "fim_pad_token_id",
    "fim_pre_token_id", "fim_rep_token_id", "fim_sep_token_id", "fim_suf_token_id",
    "mask_token_id", "middle_token_id", "prefix_token_id", "scores", "seperator_token_id",
    "suffix_token_id", "token_type_count",
)  # fmt: skip
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_PREFIX = "tokenizer.ggml."


def rebuild(values: Mapping[str, Any], where: Path) -> tuple[bytes, SpecialTokens]:
    """Return a canonical tokenizer.json and what goes with it.

    Raises:
        CheckpointError: ``tokenizer_model``, ``pre_tokenizer`` or ``tokenizer``.
    """
    own = {
        key.removeprefix(_PREFIX): value for key, value in values.items() if key.startswith(_PREFIX)
    }
    rules = _rules(own, where)
    tokens, kinds, merges = _lists(own, where)
    ids = _special_ids(own, len(tokens), where)
    adds_bos = own.get("add_bos_token", rules.adds_bos)
    adds_eos = own.get("add_eos_token", False)
    for name, flag in (("add_bos_token", adds_bos), ("add_eos_token", adds_eos)):
        if type(flag) is not bool:
            raise _bad(where, "tokenizer", f"{name} true or false", shown(flag))
    around = _around(ids, tokens, adds_bos=adds_bos, adds_eos=adds_eos, where=where)
    special = SpecialTokens(
        eos_ids=tuple(ids[key] for key in _ENDS if key in ids),
        bos_id=ids.get("bos_token_id"),
        names={name: tokens[ids[key]] for name, key in _NAMED.items() if key in ids},
    )
    return canonical(_tokenizer_json(rules, tokens, kinds, merges, around)), special


def _special_ids(own: Mapping[str, Any], vocab: int, where: Path) -> dict[str, int]:
    keys = {*_NAMED.values(), *_ENDS}
    ids = {key: own[key] for key in keys if key in own}
    for key, token_id in ids.items():
        if type(token_id) is not int or not 0 <= token_id < vocab:
            raise _bad(where, "tokenizer", f"{key} inside the vocabulary", shown(token_id))
    return ids


def _rules(own: Mapping[str, Any], where: Path) -> _Rules:
    model = own.get("model")
    if model != "gpt2":
        raise _bad(where, "tokenizer_model", "byte-level BPE (gpt2)", shown(model))
    name = own.get("pre")
    if not isinstance(name, str) or name not in _PRE_TOKENIZERS:
        wanted = "one of " + ", ".join(_PRE_TOKENIZERS)
        raise _bad(where, "pre_tokenizer", wanted, shown(name))
    # These change how SentencePiece models read text, and mean nothing good here.
    for flag in ("add_space_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        if own.get(flag, False) is not False:
            raise _bad(where, "tokenizer", f"{flag} false", shown(own[flag]))
    known = {"model", "pre", "tokens", "token_type", "merges", "add_bos_token", "add_eos_token"}
    known |= {"add_space_prefix", "remove_extra_whitespaces", "escape_whitespaces"}
    for key in own:
        if key not in known and key not in _HARMLESS and key not in _NAMED.values():
            raise _bad(where, "tokenizer", "only fields that are implemented", shown(_PREFIX + key))
    return _PRE_TOKENIZERS[name]


def _lists(own: Mapping[str, Any], where: Path) -> tuple[list[str], list[int], list[list[str]]]:
    tokens: list[str] = _list_of(own, "tokens", str, where)
    kinds: list[int] = _list_of(own, "token_type", int, where)
    merges: list[str] = _list_of(own, "merges", str, where)
    known = set(tokens)
    if not 1 <= len(tokens) <= VOCAB_MAX or len(known) != len(tokens):
        raise _bad(where, "tokenizer", "a list of tokens, each once", f"{len(tokens)} tokens")
    if len(kinds) != len(tokens):
        raise _bad(where, "tokenizer", f"{len(tokens)} token types", str(len(kinds)))
    strange = set(kinds) - {_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED}
    if strange:
        raise _bad(where, "tokenizer", "token types 1, 3, 4, 5", shown(sorted(strange)))
    pairs = [merge.split(" ") for merge in merges]
    for pair in pairs:
        if len(pair) != 2 or not all(part in known for part in (*pair, "".join(pair))):
            raise _bad(where, "tokenizer", "merges of two tokens into one", shown(" ".join(pair)))
    return tokens, kinds, pairs


def _list_of(own: Mapping[str, Any], key: str, kind: type, where: Path) -> list[Any]:
    value = own.get(key)
    if not isinstance(value, list) or any(type(one) is not kind for one in value):
        raise _bad(where, "tokenizer", f"a list of {key}", shown(value))
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
        raise _bad(where, "tokenizer", f"{missing[0]}, since it is added to texts", "none")

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


def _tokenizer_json(
    rules: _Rules,
    tokens: list[str],
    kinds: list[int],
    merges: list[list[str]],
    around: dict[str, Any] | None,
) -> dict[str, Any]:
    added = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": rules.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(rules.steps)},
        "post_processor": around,
        "decoder": _WITH_REGEX,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rules.ignore_merges,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def _bad(where: Path, reason: str, expected: str, got: str) -> CheckpointError:
    return refuse(reason, where, expected=expected, got=got, advice=_ADVICE)
