"""Turns text into token ids and back, by the ``tokenizers`` library and a tokenizer.json.

It applies no chat template and keeps no state of a text in progress.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.strict_json import canonical, parse_object
from stagelink.checkpoint.words import Words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_AGAIN = "fetch the tokenizer again"


@dataclasses.dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What a checkpoint says of its tokens beside the tokenizer itself.

    Attributes:
        eos_ids: Every id that ends a text, ascending.
        bos_id: Begin-of-text id, or ``None``.
        names: Tokens that a chat template may use, such as ``{"eos_token": "<|im_end|>"}``.
        adds_bos: Whether encoding must begin with ``bos_id``; ``None`` where nothing is said.
        known: Content of tokens by id that the tokenizer must agree with.
    """

    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adds_bos: bool | None = None
    known: Mapping[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """What two stages must agree on of a tokenizer.

    Attributes:
        digest: SHA-256 of tokenizer.json in its one byte form, in hex.
        eos_ids: As ``Tokenizer.eos_ids``.
        bos_id: As ``Tokenizer.bos_id``.
    """

    digest: str
    eos_ids: tuple[int, ...]
    bos_id: int | None

    @classmethod
    def of_made(cls, data: bytes, special: SpecialTokens) -> TokenizerIdentity:
        """Return that of a tokenizer.json that was made here, in its one byte form, unloaded.

        Its ``special`` names every id that ends a text, so nothing is looked up in it.
        """
        ends = tuple(sorted(set(special.eos_ids)))
        return cls(hashlib.sha256(data).hexdigest(), ends, special.bos_id)


class Tokenizer:
    """A loaded tokenizer.

    Attributes:
        vocab: Number of token ids, added tokens included; the model's own vocabulary may be larger.
        eos_ids: Every id that ends a text, from the config, generation config and tokenizer.
        bos_id: Begin-of-text id, or ``None``.
        special_names: Tokens that a chat template may use, by name.
    """

    def __init__(
        self, data: bytes, special: SpecialTokens, where: str | Path, *, is_canonical: bool = False
    ) -> None:
        """Load a tokenizer.json; ``is_canonical`` says that it was made here, in its one byte form.

        Raises:
            CheckpointError: ``tokenizer`` when the library refuses it or it contradicts
                ``special``; ``tokenizer_decoder`` when its decoder is not a byte-exact one.
        """
        self._where = where
        inner = _load(data, where)
        # A file may carry the truncation of its training; a prompt is never cut or padded.
        inner.no_truncation()
        inner.no_padding()
        self._inner: Any = inner
        self._words: Words | None = None
        self._again: Callable[[], Tokenizer] | None = None
        self._identity: dict[str, Any] | str
        if is_canonical:
            # Parsed, it would take more than the loaded tokenizer does; the library has the part.
            self._identity = hashlib.sha256(data).hexdigest()
            decoder: object = json.loads(inner.decoder.__getstate__())
        else:
            # Held until it is its digest.
            self._identity = parse_object(data, where, reason="tokenizer")
            decoder = self._identity.get("decoder")
        self._bytes_of = _byte_rule(decoder, where)
        self.vocab: int = inner.get_vocab_size(with_added_tokens=True)
        self.bos_id = special.bos_id
        self.special_names = dict(special.names)
        named = self.token_id(special.names["eos_token"]) if "eos_token" in special.names else None
        found = set(special.eos_ids) | ({named} if named is not None else set())
        self.eos_ids: tuple[int, ...] = tuple(sorted(found))
        self._check(special)

    def digest(self) -> str:
        """Return the SHA-256 of tokenizer.json in its one byte form, for the fingerprint."""
        if isinstance(self._identity, dict):
            self._identity = hashlib.sha256(canonical(self._identity)).hexdigest()
        return self._identity

    def identity(self) -> TokenizerIdentity:
        """Return what the fingerprint says of it."""
        return TokenizerIdentity(self.digest(), self.eos_ids, self.bos_id)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of ``text``; ``add_special`` adds what the model wants around a text.

        Special tokens that stand in ``text`` become their ids either way. A rendered chat template
        has its own, so it is encoded without.
        """
        return list(self._loaded().encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        if self._words is not None:
            return self._words.decode(ids, skip_special=skip_special)
        return str(self._inner.decode(list(ids), skip_special_tokens=skip_special))

    def token(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it, or ``None`` where there is none."""
        if self._words is not None:
            return self._words.token(token_id)
        token: str | None = self._inner.id_to_token(token_id) if token_id >= 0 else None
        return token

    def token_id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it."""
        token_id: int | None = self._loaded().token_to_id(token)
        return token_id

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token adds to a text; empty for an id that has no token.

        Joined over ids and decoded as UTF-8 they are ``decode(ids)``, but that a SentencePiece
        tokenizer's ``decode`` drops the one space before the first word.
        """
        token = self.token(token_id)
        return self._bytes_of(token) if token is not None else b""

    def release_encoder(self, again: Callable[[], Tokenizer]) -> None:
        """Keep only what makes text of ids; ``again`` loads the tokenizer where a text comes."""
        if self._words is None:
            self._words = Words(self._inner)
        # Its digest is not asked of it again either, or is cheap by then.
        self.digest()
        self._inner, self._again = None, again

    def _loaded(self) -> Any:
        """Return the library's tokenizer; one that was let go is loaded again, and kept."""
        if self._inner is None and self._again is not None:
            self._inner = self._again()._loaded()  # noqa: SLF001 - of its own kind
        return self._inner

    def _check(self, special: SpecialTokens) -> None:
        for token_id, content in special.known.items():
            if self.token(token_id) != content:
                expected = f"token {token_id} to be {shown(content)}"
                raise self._bad(expected, shown(self.token(token_id)))
        if special.adds_bos is None:
            return
        begins = self._inner.encode("", add_special_tokens=True).ids[:1]
        adds = bool(begins) and begins[0] == special.bos_id
        if adds != special.adds_bos:
            expected = f"add_bos_token {special.adds_bos}, as tokenizer_config.json says"
            raise self._bad(expected, f"{adds} in its post processor")

    def _bad(self, expected: str, got: str) -> Exception:
        return refuse("tokenizer", self._where, expected=expected, got=got, advice=_AGAIN)


def _load(data: bytes, where: str | Path) -> Any:
    # Imported here, so that opening a checkpoint for its weights does not need the library.
    import tokenizers  # noqa: PLC0415

    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # A panic of the library is no Exception. A MemoryError is not the file's fault.
        if isinstance(error, MemoryError):
            raise
        got = shown(str(error))
        raise refuse(
            "tokenizer", where, expected="a tokenizer.json", got=got, advice=_AGAIN
        ) from None


def _byte_rule(decoder: object, where: str | Path) -> Any:
    kinds = list(_decoder_kinds(decoder))
    if kinds == ["ByteLevel"]:
        table = byte_level_table()
        return lambda token: _byte_level(token, table)
    if "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return _byte_fallback
    raise refuse(
        "tokenizer_decoder",
        where,
        expected="a ByteLevel or a ByteFallback decoder",
        got=" + ".join(kinds) or "none",
        advice="use a checkpoint with one of these",
    )


def _decoder_kinds(decoder: object) -> Sequence[str]:
    if not isinstance(decoder, dict):
        return []
    parts = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    return [str(part.get("type")) for part in parts or [] if isinstance(part, dict)]


def byte_level_table() -> dict[str, int]:
    """Return which byte each character of a byte-level token stands for.

    GPT-2's rule: printable Latin-1 characters stand for themselves, the other bytes, in order, for
    U+0100 and up.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    table = {chr(byte): byte for byte in plain}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


def _byte_level(token: str, table: Mapping[str, int]) -> bytes:
    # An added token may hold characters outside the table; the library then keeps it as it is.
    try:
        return bytes([table[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def _byte_fallback(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("\u2581", " ").encode("utf-8", "replace")


def template_names(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that a tokenizer_config.json names: ``bos_token`` and the like."""
    names: dict[str, str] = {}
    for key in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"):
        value = tokenizer_config.get(key)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            names[key] = content
    return names
