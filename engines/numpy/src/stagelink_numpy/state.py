"""The bytes of one stream's KV of the own layers: made by save, checked and taken by restore.

It keeps nothing; the format is private to this engine and says all that a reader must compare.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import EngineError
from stagelink_numpy.memory import FLOAT_BYTES

if TYPE_CHECKING:
    from stagelink.engine import LlamaFamily
    from stagelink_numpy.memory import Floats

# Magic, format version, reserved, then layers first and end, kv_heads, head_width, positions, the
# model's identity and the CRC-32 of the body. The body is, layer by layer, the keys and then the
# values: float32 ``[kv_heads, positions, head_width]``. Everything is little-endian.
_HEADER = struct.Struct("<4sHHIIIII32sI")
_MAGIC = b"SLKV"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class StateFormat:
    """What a saved state must agree with to be taken by this stage."""

    first: int
    end: int
    kv_heads: int
    head_width: int
    context: int
    identity: bytes

    @classmethod
    def of(
        cls, family: LlamaFamily, first: int, end: int, context: int, content: bytes
    ) -> StateFormat:
        """Describe the state of layers ``first..end``.

        Other weights (``content`` is the checkpoint's digest) or other numbers of the family give
        another identity: a state of another model is an error, never a wrong answer.
        """
        facts = repr(sorted(dataclasses.asdict(family).items())).encode()
        identity = hashlib.sha256(b"stagelink-numpy kv\0" + content + facts).digest()
        return cls(first, end, family.kv_heads, family.head_width, context, identity)

    def body_bytes(self, positions: int) -> int:
        """Return the size of a body."""
        values = (self.end - self.first) * 2 * self.kv_heads * positions * self.head_width
        return values * FLOAT_BYTES


def encode_state(form: StateFormat, keys: Floats, values: Floats) -> bytes:
    """Return the state of keys and values ``[layers, kv_heads, positions, head_width]``."""
    body = np.stack((keys, values), axis=1).astype("<f4").tobytes()
    fields = (form.first, form.end, form.kv_heads, form.head_width, keys.shape[2])
    header = _HEADER.pack(_MAGIC, _VERSION, 0, *fields, form.identity, zlib.crc32(body))
    return header + body


def parse_state(form: StateFormat, state: bytes) -> Floats:
    """Return keys and values ``[layers, 2, kv_heads, positions, head_width]``, a view of ``state``.

    Raises:
        EngineError: ``state_format`` for what is no state of this stage, ``state_damaged`` for one
            whose bytes changed, ``context_overrun`` for one with too many positions.
    """
    if len(state) < _HEADER.size:
        raise _refuse("state_format", f"a header of {_HEADER.size} bytes", f"{len(state)} bytes")
    magic, version, reserved, *fields, identity, checksum = _HEADER.unpack_from(state)
    if (magic, version, reserved) != (_MAGIC, _VERSION, 0):
        raise _refuse("state_format", f"format {_VERSION} of this engine", f"{magic!r} {version}")
    *shape, positions = fields
    if tuple(shape) != (form.first, form.end, form.kv_heads, form.head_width):
        own = f"layers {form.first}-{form.end}, {form.kv_heads} x {form.head_width} values"
        raise _refuse("state_format", own, f"{shape}")
    if identity != form.identity:
        raise _refuse("state_format", "a state of this model", "one of another model")
    if positions > form.context:
        raise _refuse("context_overrun", f"at most {form.context} positions", str(positions))
    size = _HEADER.size + form.body_bytes(positions)
    if len(state) != size:
        raise _refuse("state_damaged", f"{size} bytes", f"{len(state)}")
    if zlib.crc32(memoryview(state)[_HEADER.size :]) != checksum:
        raise _refuse("state_damaged", f"checksum {checksum:#010x}", "another one")
    body: Floats = np.frombuffer(state, dtype="<f4", offset=_HEADER.size)
    layers = form.end - form.first
    return body.reshape(layers, 2, form.kv_heads, positions, form.head_width)


def _refuse(reason: str, expected: str, got: str) -> EngineError:
    """Build the error of one broken rule."""
    text = f"numpy engine: saved state: expected {expected}, got {got}; run the prompt again"
    return EngineError(text, reason=reason)
