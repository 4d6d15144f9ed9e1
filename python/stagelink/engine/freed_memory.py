"""Gives memory that is not needed any more, and that nobody would take back, to the system.

It frees no object.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLE = Path("/proc/self/smaps")
_DONTNEED = 4
# Where smaps counts pages of a private mapping that are not those of its file, and its last line.
_WRITTEN, _LAST = ("Anonymous:", "Swap:", "Private_Hugetlb:"), "VmFlags:"


def give_back() -> None:
    """Give back all that is free; nothing happens where the C library is another than glibc.

    An opened checkpoint leaves many small pieces: the tokenizer and its words are most of them.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def let_code_go() -> None:
    """Take the libraries' code out of this process; what runs again is mapped again from its file.

    Most of it has run once, to import and to check: 10 MiB of a stage. Nothing happens where the
    system is not Linux.
    """
    with contextlib.suppress(AttributeError, OSError):
        advise = ctypes.CDLL(None).madvise
        for begin, end in _clean_code():
            advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONTNEED)


def _clean_code() -> Iterator[tuple[int, int]]:
    """Yield the mappings (begin, end) of code that is as its file has it, by proc_pid_smaps(5)."""
    with _TABLE.open(encoding="ascii", errors="replace") as lines:
        span, is_clean_code = (0, 0), False
        for line in lines:
            key, _, rest = line.partition(" ")
            if not key.endswith(":"):
                begin, _, end = key.partition("-")
                span = int(begin, 16), int(end, 16)
                is_clean_code = rest.startswith("r-xp") and " /" in rest
            elif key in _WRITTEN:
                # A page that was written, such as a debugger's, would be lost.
                is_clean_code &= rest.split()[0] == "0"
            elif key == _LAST and is_clean_code:
                yield span
