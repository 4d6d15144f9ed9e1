"""Memory that was freed goes back to the system; measured in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Pieces too large for Python's own allocator; the last one, held, is above all the others.
_PROCESS = """
import os
from stagelink.engine.freed_memory import give_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

pieces = [bytes(600) for _ in range(100_000)]
last = pieces.pop()
before = resident()
pieces.clear()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_what_lies_under_a_piece_in_use_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS], capture_output=True, check=True, text=True, timeout=60
    )
    assert int(done.stdout) > 40 << 20
