"""Gives memory that is not needed any more, and that nobody would take back, to the system.

It frees no object.
"""

from __future__ import annotations

import contextlib
import ctypes

from stagelink.engine.memory_map import DONT_NEED, mappings_without, memory_advice

# Where smaps counts pages of a private mapping that are not its file's, such as a debugger's: they
# would be lost.
_WRITTEN = ("Anonymous", "Swap", "Private_Hugetlb")


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
        advise = memory_advice()
        for one in mappings_without(_WRITTEN):
            if one.rights == "r-xp" and one.path.startswith("/"):
                advise(one.begin, one.end - one.begin, DONT_NEED)
