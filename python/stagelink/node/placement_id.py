"""The short name of a placement that people see: what the ranks compared, and what computes.

It binds and compares nothing between ranks; the handshake's fingerprint does.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.fingerprint import Fingerprint

_TAG = b"stagelink/v1 placement id\0"
_HEX_DIGITS = 12


def placement_id(fingerprint: Fingerprint, computes: Sequence[Sequence[object]]) -> str:
    """Return twelve hex digits that bind everything that changes bits.

    Args:
        fingerprint: Equal on every rank: checkpoint, tokenizer, template, dtype, layers, versions,
            shapes.
        computes: Of every rank, as described at boot: backend, device with libraries, dtype of the
            KV, and whether it is batch invariant. Ranks need not be alike, so the fingerprint
            cannot have them.
    """
    told = json.dumps([list(one) for one in computes], separators=(",", ":")).encode()
    return hashlib.sha256(_TAG + fingerprint.digest + told).hexdigest()[:_HEX_DIGITS]
