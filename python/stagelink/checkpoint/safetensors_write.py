"""Makes the header of a safetensors file of float32 tensors.

It writes no file; the tensors follow the header in the order they were given.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Data that starts at a multiple of 64 can also be memory-mapped by those who want to.
_ALIGNMENT = 64


def header_of(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return the length and the JSON header, padded with spaces to a multiple of 64 bytes."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 4 * math.prod(shape)
        table[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
