"""Notices that the ring has ended while rank 0 waits for a line on its terminal.

It reads no line; a timer's signal interrupts whatever does.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_LOOK_SECONDS = 0.25


@contextlib.contextmanager
def looking(check: Callable[[], None]) -> Iterator[None]:
    """Call ``check`` four times a second in the main thread; what it raises leaves the block.

    Without it a stage that dies is noticed only by the next round, that is after the next line.
    """

    def look(number: int, frame: FrameType | None) -> None:
        del number, frame
        check()

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
