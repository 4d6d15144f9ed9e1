"""The bytes of one stream's state of the own layers: made by save, checked and taken by restore.

It keeps nothing; the format is private to this engine and says all that a reader must compare.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import torch

from stagelink.engine import StateEnvelope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagelink.engine import Family
    from stagelink_torch.layer import LayerSlots, Part


# torch sees no memory of no bytes.
_NOTHING = torch.empty(0, dtype=torch.uint8)


def state_envelope(
    family: Family, span: tuple[int, int], context: int, facts: Sequence[object]
) -> StateEnvelope:
    """Describe the states of layers ``span``; the body is ``LayerSlots.parts``, layer by layer.

    ``facts`` are the checkpoint's digest, dtypes and what else makes another state of it; with
    other facts, or another config, a state is refused.
    """
    config = json.dumps(dict(family.config), sort_keys=True, default=str)
    return StateEnvelope.of("torch", span, context, config.encode(), repr(facts).encode())


def encode_state(
    form: StateEnvelope, position: int, slot: int, layers: Iterable[LayerSlots]
) -> bytes:
    """Return the state of a slot, which holds ``position`` positions."""
    body = b"".join(_bytes_of(part) for layer in layers for part in layer.save(slot, position))
    return form.close(position, body)


def parse_state(
    form: StateEnvelope, state: bytes, layers: Sequence[LayerSlots]
) -> tuple[int, list[list[torch.Tensor]]]:
    """Return the positions and each layer's parts, in memory of their own.

    Raises:
        EngineError: ``state_format`` for what is no state of this stage, ``state_damaged`` for one
            whose bytes changed, ``context_overrun`` for one with too many positions.
    """
    position, body = form.open(state)
    wanted = [layer.parts(position) for layer in layers]
    form.check_size(body, sum(_part_bytes(part) for parts in wanted for part in parts))
    return position, _cut_up(body, wanted)


def _cut_up(state: memoryview, wanted: Sequence[Sequence[Part]]) -> list[list[torch.Tensor]]:
    """Return the body's tensors; its length was checked."""
    # A copy: torch wants memory that it may write to, and a part may begin at any byte.
    body = torch.frombuffer(bytearray(state), dtype=torch.uint8) if state else _NOTHING
    at = 0
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
