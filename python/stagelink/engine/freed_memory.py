"""Gives memory that was freed, and that the C library keeps for itself, back to the system.

It frees nothing itself.
"""

from __future__ import annotations

import contextlib
import ctypes


def give_back() -> None:
    """Give back all that is free; nothing happens where the C library is another than glibc.

    An opened checkpoint leaves many small pieces: the tokenizer and its words are most of them.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
