"""Digests of everything that changes a ring's bits, each comparable by itself.

It compares nothing; ranks exchange fingerprints at boot and name the first field that differs.

Every field is SHA-256 over ``"stagelink/v1 " + name + NUL`` and a canonical JSON value (sorted
keys, no whitespace, UTF-8):

| field | value |
| --- | --- |
| config | what ``read_family`` understood of the config, field by field |
| tensors | ``{"content": hex digest of the file(s), "table": [[name, dtype, shape], ...]}`` |
| tokenizer | ``{"json": hex SHA-256 of the canonical tokenizer.json, "eos": ids, "bos": id}`` |
| template | text of the chat template |
| dtype | name of the compute and row dtype |
| placement | ``[[first, end], ...]`` in order of rank |
| versions | ``{name: version}`` |
| shapes | ``{name: number}`` |

A checkpoint without a tokenizer or a template has null there.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.strict_json import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagelink.checkpoint.opened import Checkpoint

FIELDS = (
    "config",
    "tensors",
    "tokenizer",
    "template",
    "dtype",
    "placement",
    "versions",
    "shapes",
)
_DIGEST_BYTES = 32
_TAG = b"stagelink/v1 fingerprint\0"


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprint:
    """One 32-byte digest a field, in the order of ``FIELDS``."""

    config: bytes
    tensors: bytes
    tokenizer: bytes
    template: bytes
    dtype: bytes
    placement: bytes
    versions: bytes
    shapes: bytes

    def __post_init__(self) -> None:
        """Refuse a digest of another length."""
        for name, value in zip(FIELDS, self.digests, strict=True):
            if type(value) is not bytes or len(value) != _DIGEST_BYTES:
                message = f"{name} is not a digest of {_DIGEST_BYTES} bytes"
                raise ValueError(message)

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The eight digests in the order of ``FIELDS``."""
        return tuple(getattr(self, name) for name in FIELDS)

    @property
    def digest(self) -> bytes:
        """SHA-256 over the tag and the eight digests: what the handshake binds."""
        return hashlib.sha256(_TAG + b"".join(self.digests)).digest()

    @property
    def placement_id(self) -> str:
        """First 12 hex digits of ``digest``: what people see."""
        return self.digest.hex()[:12]

    def differing(self, other: Fingerprint) -> tuple[str, ...]:
        """Return the names of the fields in which ``other`` differs."""
        pairs = zip(FIELDS, self.digests, other.digests, strict=True)
        return tuple(name for name, own, its in pairs if own != its)


def make_fingerprint(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    placement: Sequence[tuple[int, int]],
    versions: Mapping[str, str],
    shapes: Mapping[str, int],
) -> Fingerprint:
    """Compute the fingerprint of a stage; hashes the weights unless their digest is remembered.

    Args:
        checkpoint: What is served. A GGUF gives the same whether it was converted or not.
        dtype: Compute and row dtype.
        placement: Half-open layer range of every rank, in order of rank.
        versions: What must be equal everywhere, such as engine and library versions.
        shapes: Numbers that shape a round, such as context and chunk rows.

    Raises:
        CheckpointError: The config, a weight file or the tokenizer is refused.
    """
    values: dict[str, Any] = {
        "config": _config(checkpoint),
        "tensors": {
            "content": checkpoint.content_digest().hex(),
            "table": checkpoint.source_table,
        },
        "template": checkpoint.chat_template,
        "dtype": dtype,
        "placement": [[first, end] for first, end in placement],
        "versions": dict(versions),
        "shapes": dict(shapes),
    }
    digests = {name: _field(name, value) for name, value in values.items()}
    digests["tokenizer"] = checkpoint.tokenizer_digest(
        lambda: _field("tokenizer", _tokenizer(checkpoint))
    )
    return Fingerprint(**digests)


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    family = read_family(checkpoint.config, str(checkpoint.path), checkpoint.tensors)
    return family.understood()


def _tokenizer(checkpoint: Checkpoint) -> dict[str, Any] | None:
    identity = checkpoint.tokenizer_identity()
    if identity is None:
        return None
    return {"json": identity.digest, "eos": identity.eos_ids, "bos": identity.bos_id}


def _field(name: str, value: object) -> bytes:
    return hashlib.sha256(f"stagelink/v1 {name}\0".encode() + canonical(value)).digest()
