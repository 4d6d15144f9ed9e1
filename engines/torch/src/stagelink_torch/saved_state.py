"""The bytes of one stream's state of the own layers: made by save, checked and taken by restore.

It keeps nothing; the format is private to this engine and says all that a reader must compare.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
import zlib
from typing import TYPE_CHECKING

import torch

from stagelink.engine import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagelink.engine import Family
    from stagelink_torch.layer import LayerSlots, Part

# Magic, format version, reserved, layers first and end, positions, the model's identity, and the
# CRC-32 of the body: layer by layer, part by part, as ``LayerSlots.parts`` says. Little-endian.
_HEADER = struct.Struct("<4sHHIII32sI")
_MAGIC = b"SLTS"
_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class StateFormat:
    """What a saved state must agree with to be taken by this stage."""

    first: int
    end: int
    context: int
    identity: bytes

    @classmethod
    def of(
        cls, family: Family, span: tuple[int, int], context: int, facts: Sequence[object]
    ) -> StateFormat:
        """Describe the state of layers ``span``.

        ``facts`` are the checkpoint's digest, dtypes and what else makes another state of it; with
        other facts, or another config, the identity differs, and a state is refused.
        """
        config = json.dumps(dict(family.config), sort_keys=True, default=str)
        text = f"stagelink-torch state\0{config}\0{facts!r}"
        return cls(*span, context, hashlib.sha256(text.encode()).digest())


def encode_state(
    form: StateFormat, position: int, slot: int, layers: Iterable[LayerSlots]
) -> bytes:
    """Return the state of a slot, which holds ``position`` positions."""
    body = b"".join(_bytes_of(part) for layer in layers for part in layer.save(slot, position))
    fields = form.first, form.end, position, form.identity, zlib.crc32(body)
    return _HEADER.pack(_MAGIC, _VERSION, 0, *fields) + body


def parse_state(
    form: StateFormat, state: bytes, layers: Sequence[LayerSlots]
) -> tuple[int, list[list[torch.Tensor]]]:
    """Return the positions and each layer's parts, in memory of their own.

    Raises:
        EngineError: ``state_format`` for what is no state of this stage, ``state_damaged`` for one
            whose bytes changed, ``context_overrun`` for one with too many positions.
    """
    if len(state) < _HEADER.size:
        raise _refuse("state_format", f"a header of {_HEADER.size} bytes", f"{len(state)} bytes")
    magic, version, reserved, first, end, position, identity, checksum = _HEADER.unpack_from(state)
    if (magic, version, reserved) != (_MAGIC, _VERSION, 0):
        raise _refuse("state_format", f"format {_VERSION} of this engine", f"{magic!r} {version}")
    if (first, end) != (form.first, form.end):
        raise _refuse("state_format", f"layers {form.first}-{form.end}", f"{first}-{end}")
    if identity != form.identity:
        raise _refuse("state_format", "a state of this model and dtype", "another one's")
    if position > form.context:
        raise _refuse("context_overrun", f"at most {form.context} positions", str(position))
    wanted = [layer.parts(position) for layer in layers]
    size = _HEADER.size + sum(_part_bytes(part) for parts in wanted for part in parts)
    if len(state) != size:
        raise _refuse("state_damaged", f"{size} bytes", str(len(state)))
    if zlib.crc32(memoryview(state)[_HEADER.size :]) != checksum:
        raise _refuse("state_damaged", f"checksum {checksum:#010x}", "another one")
    return position, _cut_up(state, wanted)


def _cut_up(state: bytes, wanted: Sequence[Sequence[Part]]) -> list[list[torch.Tensor]]:
    """Return the body's tensors; its length was checked."""
    # A copy: torch wants memory that it may write to, and a part may begin at any byte.
    body = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    at = _HEADER.size
    layers = []
    for parts in wanted:
        taken = []
        for part in parts:
            size = _part_bytes(part)
            piece = body[at : at + size].clone()
            taken.append(piece.view(part.dtype).view(part.shape))
            at += size
        layers.append(taken)
    return layers


def _part_bytes(part: Part) -> int:
    """Return the bytes of one part."""
    return math.prod(part.shape) * part.dtype.itemsize


def _bytes_of(part: torch.Tensor) -> bytes:
    """Return a tensor's bytes in order."""
    whole = part.detach().cpu().contiguous()
    return whole.view(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b""


def _refuse(reason: str, expected: str, got: str) -> EngineError:
    """Build the error of one broken rule."""
    text = f"torch engine: saved state: expected {expected}, got {got}; run the prompt again"
    return EngineError(text, reason=reason)
