"""One line on stderr that says how far loading has come, on a terminal only.

It is a line of its own making: importing a library for it would take longer than most loads.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

from stagelink.node.watch import Watch

_REDRAW_SECONDS = 0.05
_MIB = 1 << 20


class ProgressLine(Watch):
    """A line that is redrawn in place and wiped when the stage runs."""

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        """Draw nothing where ``quiet`` or where the stream is no terminal."""
        self._stream = sys.stderr if stream is None else stream
        self._on = not quiet and self._stream.isatty()
        self._drawn_at = 0.0

    def converting(self, what: str, done: int, total: int) -> None:
        """Show what is done with a checkpoint before it can be read."""
        self._draw(what, done, total)

    def loading(self, done: int, total: int) -> None:
        """Show the bytes of the own layers."""
        self._draw("loading", done, total)

    def running(self) -> None:
        """Wipe the line."""
        self.wipe()

    def wipe(self) -> None:
        """Leave no trace of the line."""
        if self._on and self._drawn_at:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn_at = 0.0

    def note(self, text: str) -> None:
        """Say one line that stays, terminal or not; nothing where ``quiet`` was asked for."""
        self.wipe()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def _draw(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._on or (now - self._drawn_at < _REDRAW_SECONDS and done < total):
            return
        self._drawn_at = now
        share = 100 * done // total if total else 100
        self._stream.write(f"\r\x1b[K{what} {done // _MIB} of {total // _MIB} MiB ({share} %)")
        self._stream.flush()
