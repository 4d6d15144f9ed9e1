"""The C ping-pong that figures are compared with: compiled once a run, started by case.

It measures nothing itself and keeps no result.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPILE_SECONDS = 60


def cores() -> tuple[int, int]:
    """Two different cores for the two ends, or no pinning (-1) where there is only one."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (available[0], available[1]) if len(available) > 1 else (-1, -1)


def compile_reference(folder: Path, source: str = "ping_pong.c") -> Path:
    """A program of this folder, compiled into ``folder`` with the machine's C compiler.

    Raises:
        FileNotFoundError: there is no compiler.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("expected a C compiler, found none; set CC")
    program = folder / Path(source).stem
    command = [compiler, "-O2", "-o", str(program), str(HERE / source)]
    subprocess.run(command, check=True, timeout=COMPILE_SECONDS)
    return program


def reference_command(
    program: Path,
    wait: str,
    size: int,
    rounds: int,
    pinned: tuple[int, int],
    *,
    checksum: bool = False,
    compute_us: int = 0,
    connections: int = 1,
) -> list[str]:
    """The command line of one run; it prints one round trip, in microseconds, a line.

    ``connections`` 2 gives each way a connection of its own, as in a ring.
    """
    strategy = "sleep" if wait == "block" else wait
    numbers = (size, rounds, int(checksum), *pinned, compute_us, connections)
    return [str(program), strategy, *map(str, numbers)]
