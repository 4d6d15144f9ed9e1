"""Sealed frames (docs/protocol.md 4.6): records made and opened with ``cryptography``'s ciphers.

It knows one direction of one connection; the traffic key comes from handshake.py.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from tests.support.second_reader.wire import (
    HEADER_BYTES,
    NUMBERS,
    Header,
    Refusal,
    crc32c,
    parse_header,
    refuse_unless,
)

PSK, AES, CHACHA = 1, 2, 3
RECORD_BYTES = 262_144
TAG_BYTES = 16
COUNTER_END = 1 << 34


def record_sizes(payload_bytes: int) -> list[int]:
    """Plaintext bytes of each record of a payload; an empty payload is one record of nothing."""
    count = max(1, -(-payload_bytes // RECORD_BYTES))
    return [min(RECORD_BYTES, payload_bytes - RECORD_BYTES * k) for k in range(count)]


def wire_bytes(payload_bytes: int) -> int:
    """What follows the header of a sealed frame."""
    return payload_bytes + TAG_BYTES * len(record_sizes(payload_bytes))


class Direction:
    """One direction of a sealed connection: its cipher and its counter.

    Args:
        suite: ``AES`` or ``CHACHA``.
        traffic: The direction's traffic key of 4.2, 32 bytes.
        counter: Number of the next record.
    """

    def __init__(self, suite: int, traffic: bytes, counter: int = 0) -> None:
        if suite == AES:
            self._cipher: AESGCM | ChaCha20Poly1305 = AESGCM(traffic[:16])
        elif suite == CHACHA:
            self._cipher = ChaCha20Poly1305(traffic)
        else:
            message = f"suite {suite} is not sealed"
            raise ValueError(message)
        self._counter = counter

    def make(self, kind: str, payload: bytes, *, sequence: int, count: int = 0) -> bytes:
        """A whole frame."""
        return self.seal(sealed_head(kind, len(payload), sequence=sequence, count=count), payload)

    def seal(self, head: bytes, payload: bytes) -> bytes:
        """A header and the records of its payload."""
        frame, at = head, 0
        for size in record_sizes(len(payload)):
            frame += self._cipher.encrypt(self._nonce(), payload[at : at + size], head)
            at += size
        return frame

    def open(self, data: bytes) -> tuple[Header, bytes]:
        """A whole frame's header and plaintext."""
        header = parse_header(data, sealed=True)
        return header, self.open_records(data[:HEADER_BYTES], header, data[HEADER_BYTES:])

    def open_records(self, head: bytes, header: Header, body: bytes) -> bytes:
        """The payload, from everything that follows a header."""
        refuse_unless(header.payload_checksum == 0, "payload_checksum")
        payload, at = b"", 0
        for size in record_sizes(header.payload_bytes):
            record = body[at : at + size + TAG_BYTES]
            refuse_unless(len(record) == size + TAG_BYTES, "truncated")
            try:
                payload += self._cipher.decrypt(self._nonce(), record, head)
            except InvalidTag as error:
                raise Refusal("seal", f"record {self._counter - 1}") from error
            at += len(record)
        return payload

    def begin_again(self) -> None:
        """Break 4.6: the counter stands at its beginning once more."""
        self._counter = 0

    def _nonce(self) -> bytes:
        refuse_unless(self._counter < COUNTER_END, "local", "the counter is used up")
        self._counter += 1
        return bytes(4) + (self._counter - 1).to_bytes(8, "little")


def sealed_head(kind: str, payload_bytes: int, *, sequence: int, count: int = 0) -> bytes:
    """The header of a sealed frame: flag bit 2, no checksum of the payload."""
    head = struct.pack(
        "<4sBBHIIQI", b"SLNK", 1, NUMBERS[kind], 4, payload_bytes, count, sequence, 0
    )
    return head + struct.pack("<I", crc32c(head))
