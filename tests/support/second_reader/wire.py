"""Refusals, fields of a payload, and the 32-byte frame header (docs/protocol.md 3).

It knows no message: what a payload says is in messages.py and plan.py.
"""

from __future__ import annotations

import dataclasses
import struct

MAGIC = b"SLNK"
HEADER_BYTES = 32
GIB = 1 << 30

KINDS = {
    1: "hello",
    2: "challenge",
    3: "proof",
    4: "welcome",
    5: "refused",
    16: "describe",
    17: "ready",
    18: "plan",
    19: "rows",
    20: "credit",
    21: "progress",
    22: "fate",
    23: "bye",
    24: "roster",
    25: "open",
    26: "tokens",
    27: "cancel",
    28: "figures",
}
NUMBERS = {name: number for number, name in KINDS.items()}
HANDSHAKE = ("hello", "challenge", "proof", "welcome", "refused")
FIXED_BYTES = {
    "hello": 128,
    "challenge": 32,
    "proof": 32,
    "welcome": 160,
    "refused": 256,
    "ready": 40,
    "credit": 0,
    "progress": 40,
    "bye": 0,
    "open": 32,
    "cancel": 8,
    "figures": 56,
}
MOST_BYTES = {"describe": 2048, "plan": 4 << 20, "fate": 528, "roster": 33_672}
COUNTED = ("rows", "tokens", "credit")
NUMBERED_BY_ROUND = ("plan", "rows", "tokens")


class Refusal(Exception):  # noqa: N818 (the protocol's own word)
    """Bytes break a rule; ``code`` is its name in docs/protocol.md 9."""

    def __init__(self, code: str, detail: str = "", rank: int | None = None) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.rank = rank


def refuse_unless(fact: bool, code: str, detail: str = "") -> None:
    """Raise the refusal where a rule does not hold."""
    if not fact:
        raise Refusal(code, detail)


def _crc_table() -> tuple[int, ...]:
    """CRC of each byte value, for the reflected polynomial of 0x1EDC6F41."""
    table = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = (crc >> 1) ^ 0x82F63B78 if crc & 1 else crc >> 1
        table.append(crc)
    return tuple(table)


_TABLE = _crc_table()


def crc32c(data: bytes | bytearray) -> int:
    """CRC-32C (CRC-32/ISCSI) of ``data``."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Fields:
    """A payload read field by field; what is missing is ``payload_short``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        refuse_unless(self._at + count <= len(self._data), "payload_short")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, count: int) -> int:
        """The next ``count`` bytes as an unsigned little-endian number."""
        return int.from_bytes(self.take(count), "little")

    def zeros(self, count: int) -> None:
        """Reserved bytes."""
        refuse_unless(not any(self.take(count)), "reserved_not_zero")

    def text(self, count: int) -> str:
        """UTF-8 without control characters."""
        return plain_text(self.take(count))

    def end(self) -> None:
        """Nothing may follow."""
        refuse_unless(self._at == len(self._data), "payload_trailing")


def plain_text(data: bytes) -> str:
    """UTF-8 without control characters, else ``bad_text``."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal("bad_text", str(error)) from error
    refuse_unless(not any(ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F for c in text), "bad_text")
    return text


@dataclasses.dataclass(frozen=True)
class Header:
    """A frame header whose own rules hold."""

    kind: str
    payload_bytes: int
    count: int
    sequence: int
    payload_checksum: int
    has_checksum: bool


def parse_header(
    data: bytes,
    *,
    checksum: bool = True,
    payload_max: int = GIB,
    sequence: int | None = None,
    sealed: bool = False,
) -> Header:
    """Check a header's rules in the order of section 3, up to the sequence.

    Args:
        data: What has come of the frame, from its first byte on.
        checksum: Whether the ends agreed on payload checksums.
        payload_max: Largest payload that this end said it takes.
        sequence: The number that is due; ``None``: not judged.
        sealed: Whether the link is sealed, and so every frame of it.
    """
    refuse_unless(len(data) >= HEADER_BYTES, "truncated")
    magic, version, kind_number, flags, size, count, number, payload_crc, header_crc = (
        struct.unpack_from("<4sBBHIIQII", data)
    )
    refuse_unless(magic == MAGIC, "bad_magic")
    refuse_unless(header_crc == crc32c(data[:28]), "header_checksum")
    refuse_unless(version == 1, "bad_version")
    refuse_unless(kind_number in KINDS, "unknown_kind", str(kind_number))
    kind = KINDS[kind_number]
    refuse_unless(flags & ~(5 if sealed else 1) == 0, "unknown_flag")
    has_checksum = flags & 1 == 1
    if sealed:
        refuse_unless(flags == 4, "not_sealed")
    else:
        refuse_unless(has_checksum == (checksum or kind in HANDSHAKE), "missing_checksum")
    if kind in FIXED_BYTES:
        refuse_unless(size == FIXED_BYTES[kind], "payload_size", f"{kind} of {size} bytes")
    else:
        refuse_unless(kind != "tokens" or size == 4 * count, "payload_size", f"{size} bytes")
        most = min(MOST_BYTES.get(kind, GIB), payload_max, GIB)
        refuse_unless(size <= most, "payload_too_large", f"{kind} of {size} bytes, most {most}")
    refuse_unless(count == 0 or kind in COUNTED, "bad_count")
    refuse_unless(count > 0 or kind != "credit", "bad_count")
    refuse_unless(sequence is None or number == sequence, "bad_sequence", f"{number}")
    return Header(kind, size, count, number, payload_crc, has_checksum)


def payload_of(header: Header, data: bytes) -> bytes:
    """The payload that follows a header in ``data``, its checksum compared."""
    payload = data[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    refuse_unless(len(payload) == header.payload_bytes, "truncated")
    wanted = crc32c(payload) if header.has_checksum else 0
    refuse_unless(header.payload_checksum == wanted, "payload_checksum")
    return payload


def make_frame(
    kind: str, payload: bytes = b"", *, sequence: int, count: int = 0, checksum: bool = True
) -> bytes:
    """A whole frame."""
    flags, crc = (1, crc32c(payload)) if checksum or kind in HANDSHAKE else (0, 0)
    head = struct.pack(
        "<4sBBHIIQI", MAGIC, 1, NUMBERS[kind], flags, len(payload), count, sequence, crc
    )
    return head + struct.pack("<I", crc32c(head)) + payload
