"""A bar on stderr that says how far loading has come, on a terminal only.

rich draws it, imported only where there is a terminal to draw on; nothing else is printed here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from stagelink.node.watch import Watch

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressLine(Watch):
    """A bar that is redrawn in place and wiped when the stage runs."""

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        """Draw nothing where ``quiet`` or where the stream is no terminal."""
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._on = not quiet and self._stream.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""

    def converting(self, what: str, done: int, total: int) -> None:
        """Show what is done with a checkpoint before it can be read."""
        self._draw(what, done, total)

    def turned_away(self, strangers: str) -> None:
        """Say who came to the listener and was not let in, unless quiet."""
        if not self._quiet:
            self.note(f"while the ring came together: {strangers}")

    def loading(self, done: int, total: int) -> None:
        """Show the bytes of the own layers."""
        self._draw("loading", done, total)

    def running(self) -> None:
        """Wipe the bar."""
        self.wipe()

    def verifying(self, done: int, total: int) -> None:
        """Show the rounds of a verification."""
        self._draw("verifying", done, total, counted=True)

    def wipe(self) -> None:
        """Leave no trace of the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._task = None

    def note(self, text: str) -> None:
        """Say one line that stays, terminal or not; nothing where ``quiet`` was asked for."""
        self.wipe()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def _draw(self, what: str, done: int, total: int, *, counted: bool = False) -> None:
        if not self._on:
            return
        if self._bar is None:
            self._bar = _bar(self._stream, counted=counted)
            self._bar.start()
        if self._task is None or what != self._what:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total)
            self._what = what
        self._bar.update(self._task, completed=done, total=total)


def _bar(stream: TextIO, *, counted: bool) -> Progress:
    """Make a bar of bytes, or of things that are counted, that vanishes when it stops."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if counted else DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
