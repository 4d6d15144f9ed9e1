"""What surrounds a saved state of a stream: whose it is, how long, and a checksum.

It looks into no state; what the body holds is each engine's own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import zlib
from typing import TYPE_CHECKING

from stagelink.errors import EngineError

if TYPE_CHECKING:
    from typing import Self

# Magic, format version, reserved, layers first and end, positions held, bytes of the body, identity
# of engine, model and settings, CRC-32 of all that stands before it and of the body. Little-endian.
_HEADER = struct.Struct("<4sHHIIIQ32sI")
_CHECKED = _HEADER.size - 4
_MAGIC = b"SLST"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class StateEnvelope:
    """What a saved state must agree with to be taken by a stage.

    Attributes:
        engine: The engine's name.
        first: First layer held.
        end: One past the last.
        context: Most positions of a stream.
        identity: 32 bytes that differ where the state would mean something else.
    """

    engine: str
    first: int
    end: int
    context: int
    identity: bytes

    @classmethod
    def of(cls, engine: str, span: tuple[int, int], context: int, *facts: bytes) -> Self:
        """Describe the states of layers ``span``; other ``facts`` give another identity.

        ``facts`` are the checkpoint's digest, the model's numbers, dtypes and what else changes a
        state's bytes: a state of another model is an error, never a wrong answer.
        """
        identity = hashlib.sha256(f"stagelink-{engine} state\0".encode())
        for fact in facts:
            identity.update(len(fact).to_bytes(8, "little") + fact)
        return cls(engine, *span, context, identity.digest())

    def close(self, position: int, body: bytes) -> bytes:
        """Return the state of a stream that holds ``position`` positions."""
        fields = (self.first, self.end, position, len(body), self.identity)
        told = _HEADER.pack(_MAGIC, _VERSION, 0, *fields, 0)[:_CHECKED]
        return told + zlib.crc32(body, zlib.crc32(told)).to_bytes(4, "little") + body

    def open(self, state: bytes) -> tuple[int, memoryview]:
        """Return positions and body, a view of ``state``.

        Raises:
            EngineError: ``state_format`` for what is no state of this stage, ``state_damaged`` for
                one whose bytes changed, ``context_overrun`` for one with too many positions.
        """
        if len(state) < _HEADER.size:
            expected = f"a header of {_HEADER.size} bytes"
            raise self.refuse("state_format", expected, f"{len(state)} bytes")
        magic, version, reserved, *fields = _HEADER.unpack_from(state)
        first, end, position, size, identity, checksum = fields
        if (magic, version, reserved) != (_MAGIC, _VERSION, 0):
            raise self.refuse("state_format", f"format {_VERSION}", f"{magic!r} {version}")
        if (first, end) != (self.first, self.end):
            raise self.refuse("state_format", f"layers {self.first}-{self.end}", f"{first}-{end}")
        if identity != self.identity:
            expected = "a state of this engine, model and settings"
            raise self.refuse("state_format", expected, "one of others")
        body = memoryview(state)[_HEADER.size :]
        self.check_size(body, size)
        if zlib.crc32(body, zlib.crc32(state[:_CHECKED])) != checksum:
            raise self.refuse("state_damaged", f"checksum {checksum:#010x}", "another one")
        if position > self.context:
            raise self.refuse("context_overrun", f"at most {self.context} positions", position)
        return position, body

    def check_size(self, body: memoryview, expected: int) -> None:
        """Refuse a body of another size than its positions take: ``state_damaged``."""
        if len(body) != expected:
            raise self.refuse("state_damaged", f"{expected} bytes", len(body))

    def refuse(self, reason: str, expected: str, got: object) -> EngineError:
        """Build the error of a state that is not taken."""
        text = f"{self.engine} engine: saved state: expected {expected}, got {got}"
        return EngineError(f"{text}; run the prompt again", reason=reason)
