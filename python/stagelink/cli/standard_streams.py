"""Makes the three standard streams safe to use: open, and able to hold any text.

What is read from them or written to them is not its business.
"""

from __future__ import annotations

import io
import os
import sys

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def prepare() -> None:
    """Open the null device where a stream was closed, and let no character end the process.

    A closed descriptor's number would go to the next pipe or socket, and a child would then get
    that as its standard stream.
    """
    for number in (_STDIN, _STDOUT, _STDERR):
        if not _is_open(number):
            # The lowest free number is taken: this one, for those below it are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or _text(_STDIN, "r")
    sys.stdout = sys.stdout or _text(_STDOUT, "w")
    sys.stderr = sys.stderr or _text(_STDERR, "w")
    # Bytes that are no text become characters that a prompt is refused for; what a terminal of
    # another encoding cannot show becomes a question mark.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _text(number: int, mode: str) -> io.TextIOWrapper:
    stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
    assert isinstance(stream, io.TextIOWrapper)  # noqa: S101 (a text mode makes one)
    return stream
