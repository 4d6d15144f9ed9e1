"""Encodes a GGUF file's head: metadata and tensor table, version 3, little-endian.

It reads nothing and writes no tensor data. Layout: the GGUF specification, ggml-org/ggml
docs/gguf.md.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

from stagelink.engine import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALIGNMENT = 32
# Value types of the format that are written here for keys which the source does not have.
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_REAL = (6, 12)
_MAGIC_AND_VERSION = b"GGUF" + struct.pack("<I", 3)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the table.

    Attributes:
        name: GGUF name.
        kind: Number of its type.
        shape: Dimensions, rows first.
        nbytes: Bytes of its data.
    """

    name: str
    kind: int
    shape: tuple[int, ...]
    nbytes: int


def aligned(count: int) -> int:
    """Return the next border of tensor data at or after ``count``."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def offsets_of(entries: Sequence[Entry]) -> list[int]:
    """Return where each tensor's data begins, counted from the end of the head."""
    offsets, reached = [], 0
    for entry in entries:
        offsets.append(reached)
        reached = aligned(reached + entry.nbytes)
    return offsets


def encode_head(
    values: Mapping[str, Any], kinds: Mapping[str, tuple[int, ...]], entries: Sequence[Entry]
) -> bytes:
    """Return the bytes before the tensor data, padded to the border where it begins.

    Args:
        values: Metadata; a key that ``kinds`` lacks, or has a type for that its value does not fit,
            is written as the type of its Python value.
        kinds: Value types, as ``GgufSource.kinds``.
        entries: The tensor table, in the order of the data.
    """
    parts = [_MAGIC_AND_VERSION, struct.pack("<QQ", len(entries), len(values))]
    for key, value in values.items():
        parts += [_text(key), _value(value, kinds.get(key))]
    for entry, offset in zip(entries, offsets_of(entries), strict=True):
        shape = entry.shape[::-1]
        parts += [_text(entry.name), struct.pack(f"<I{len(shape)}Q", len(shape), *shape)]
        parts.append(struct.pack("<IQ", entry.kind, offset))
    head = b"".join(parts)
    return head.ljust(aligned(len(head)), b"\0")


def _value(value: Any, told: tuple[int, ...] | None) -> bytes:
    kind = told if told is not None and _fits(value, told) else _kind_of(value)
    if kind[0] != ARRAY:
        return struct.pack("<I", kind[0]) + _plain(value, kind[0])
    items = b"".join(_plain(one, kind[1]) for one in value)
    return struct.pack("<IIQ", ARRAY, kind[1], len(value)) + items


def _fits(value: Any, kind: tuple[int, ...]) -> bool:
    """Say whether a value can be written as a type: true and false as whole numbers too."""
    if isinstance(value, list):
        return kind[0] == ARRAY and all(_fits(one, kind[1:]) for one in value)
    if isinstance(value, str):
        return kind[0] == STRING
    if kind[0] not in _FORMATS or isinstance(value, float) != (kind[0] in _REAL):
        return False
    if kind[0] == BOOL and not isinstance(value, bool):
        return False
    try:
        struct.pack(f"<{_FORMATS[kind[0]]}", value)
    except (struct.error, OverflowError):
        return False
    return True


def _plain(value: Any, kind: int) -> bytes:
    if kind == STRING:
        return _text(value)
    try:
        return struct.pack(f"<{_FORMATS[kind]}", value)
    except (struct.error, OverflowError):
        raise ConfigError(
            f"llamacpp engine: expected {_FORMATS[kind]!r} to hold a number of the metadata, got "
            f"{repr(value)[:40]}; fetch the file again",
            reason="gguf_metadata",
        ) from None


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _kind_of(value: Any) -> tuple[int, ...]:
    if isinstance(value, list):
        return (ARRAY, *(_kind_of(value[0]) if value else (U32,)))
    # bool first: it is an int too.
    for one, kind in ((bool, BOOL), (int, U32), (float, F32), (str, STRING)):
        if isinstance(value, one):
            return (kind,)
    raise TypeError(f"no GGUF type for {type(value).__name__}")
