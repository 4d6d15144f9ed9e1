"""The bytes of one stream's saved state: llama.cpp's own, behind a header that says whose it is.

It keeps nothing. llama.cpp's parser sees only bytes that have the checksum of what `save` wrote.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import zlib

from stagelink.engine import EngineError

# Magic, format version, reserved, layers first and end, positions held, bytes of the body, identity
# of model and settings, CRC-32 of the body. Little-endian.
_HEADER = struct.Struct("<4sHHIIIQ32sI")
_MAGIC = b"SLGG"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class StateFormat:
    """What a saved state must agree with to be taken by this stage."""

    first: int
    end: int
    context: int
    identity: bytes

    @classmethod
    def of(cls, first: int, end: int, context: int, content: bytes, facts: str) -> StateFormat:
        """Describe the state of layers ``first..end`` of the checkpoint with digest ``content``.

        ``facts`` are what else changes its bytes: llama.cpp's version, the KV's type and its size.
        """
        text = b"stagelink-llamacpp state\0" + content + facts.encode()
        return cls(first, end, context, hashlib.sha256(text).digest())


def encode_state(form: StateFormat, position: int, body: bytes) -> bytes:
    """Return the state of a stream that holds ``position`` positions."""
    fields = (form.first, form.end, position, len(body), form.identity, zlib.crc32(body))
    return _HEADER.pack(_MAGIC, _VERSION, 0, *fields) + body


def parse_state(form: StateFormat, state: bytes) -> tuple[int, bytes]:
    """Return position and body.

    Raises:
        EngineError: ``state_format`` for what is no state of this stage, ``state_damaged`` for one
            whose bytes changed, ``context_overrun`` for one with too many positions.
    """
    if len(state) < _HEADER.size:
        raise _refuse("state_format", f"a header of {_HEADER.size} bytes", f"{len(state)} bytes")
    magic, version, reserved, *fields = _HEADER.unpack_from(state)
    first, end, position, size, identity, checksum = fields
    if (magic, version, reserved) != (_MAGIC, _VERSION, 0):
        raise _refuse("state_format", f"format {_VERSION} of this engine", f"{magic!r} {version}")
    if (first, end) != (form.first, form.end):
        own = f"layers {form.first}-{form.end}"
        raise _refuse("state_format", own, f"{first}-{end}")
    if identity != form.identity:
        raise _refuse("state_format", "a state of this model, llama.cpp and KV", "another")
    if position > form.context:
        raise _refuse("context_overrun", f"at most {form.context} positions", str(position))
    if len(state) != _HEADER.size + size:
        raise _refuse("state_damaged", f"{_HEADER.size + size} bytes", f"{len(state)}")
    body = state[_HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise _refuse("state_damaged", f"checksum {checksum:#010x}", "another one")
    return position, body


def _refuse(reason: str, expected: str, got: str) -> EngineError:
    text = f"llamacpp engine: saved state: expected {expected}, got {got}; run the prompt again"
    return EngineError(text, reason=reason)
