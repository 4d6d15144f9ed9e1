"""Other processes that want the processors while something is measured, and computing itself.

It measures nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Ends by itself should its parent be gone, so that no run leaves a machine busy.
_SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep ``count`` processes computing, one on each of the first processors, inside the block."""
    others = []
    try:
        for index in range(count):
            other = subprocess.Popen([sys.executable, "-c", _SPIN])
            others.append(other)
            pin(index, other.pid)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def pin(core: int, process: int = 0) -> None:
    """Keep a process, this one by default, on one core; nothing where that cannot be."""
    if core >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process, {core})


def compute(microseconds: int) -> None:
    """Take so much of a core's time, as an engine would, however long others make that."""
    end = time.thread_time_ns() + microseconds * 1000
    while time.thread_time_ns() < end:
        pass
