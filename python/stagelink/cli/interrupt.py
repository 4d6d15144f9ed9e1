"""Ctrl-C on rank 0: while an answer is generated the first one ends it after its round, in order.

Everywhere else, and the second time, it is a `KeyboardInterrupt` as usual.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# One Ctrl-C reaches rank 0 twice where a launcher on the same terminal passes it on.
_SAME_SECONDS = 0.25


class Interrupts:
    """Takes over SIGINT for the rest of the process's life."""

    def __init__(self) -> None:
        """Install the handler, and let SIGINT in where the launcher held it back."""
        self._came_at = float("-inf")
        self._is_held = False
        self.came = False
        signal.signal(signal.SIGINT, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block the first Ctrl-C only sets ``came``."""
        self.came, self._is_held = False, True
        try:
            yield
        finally:
            self._is_held = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_same, self._came_at = now - self._came_at < _SAME_SECONDS, now
        if is_same:
            return
        if self._is_held and not self.came:
            self.came = True
            return
        self.came = True
        signal.default_int_handler(number, frame)
