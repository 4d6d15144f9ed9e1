"""The bytes of one stream's KV of the own layers: made by save, checked and taken by restore.

It keeps nothing; the format is private to this engine and says all that a reader must compare.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import StateEnvelope
from stagelink_numpy.memory import FLOAT_BYTES

if TYPE_CHECKING:
    from stagelink.engine import LlamaFamily
    from stagelink_numpy.memory import Floats


@dataclasses.dataclass(frozen=True, slots=True)
class StateFormat:
    """What a saved state must agree with to be taken by this stage.

    The body is, layer by layer, the keys and then the values: little-endian float32
    ``[kv_heads, positions, head_width]``.
    """

    envelope: StateEnvelope
    layers: int
    kv_heads: int
    head_width: int

    @classmethod
    def of(
        cls, family: LlamaFamily, first: int, end: int, context: int, content: bytes
    ) -> StateFormat:
        """Describe the state of layers ``first..end``; ``content`` is the checkpoint's digest."""
        facts = repr(sorted(dataclasses.asdict(family).items())).encode()
        envelope = StateEnvelope.of("numpy", (first, end), context, content, facts)
        return cls(envelope, end - first, family.kv_heads, family.head_width)

    def shape(self, positions: int) -> tuple[int, int, int, int, int]:
        """Return the shape of a body: ``[layers, 2, kv_heads, positions, head_width]``."""
        return self.layers, 2, self.kv_heads, positions, self.head_width


def encode_state(form: StateFormat, keys: Floats, values: Floats) -> bytes:
    """Return the state of keys and values ``[layers, kv_heads, positions, head_width]``."""
    body = np.stack((keys, values), axis=1).astype("<f4").tobytes()
    return form.envelope.close(keys.shape[2], body)


def parse_state(form: StateFormat, state: bytes) -> Floats:
    """Return keys and values ``[layers, 2, kv_heads, positions, head_width]``, a view of ``state``.

    Raises:
        EngineError: ``state_format`` for what is no state of this stage, ``state_damaged`` for one
            whose bytes changed, ``context_overrun`` for one with too many positions.
    """
    position, taken = form.envelope.open(state)
    shape = form.shape(position)
    form.envelope.check_size(taken, int(np.prod(shape, dtype=np.int64)) * FLOAT_BYTES)
    body: Floats = np.frombuffer(taken, dtype="<f4")
    return body.reshape(shape)
