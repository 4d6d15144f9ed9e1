"""One bounded run of one peer: starts its processes, waits, ends what is left, reads the times.

It decides neither what to run nor how often, and compares nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import statistics
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
RUN_SECONDS = 60
ALARM_SECONDS = RUN_SECONDS + 5  # A process left alone ends itself a little after its deadline.
POLL_SECONDS = 0.05
LOOPBACK = "127.0.0.1"


class RunError(Exception):
    """A run gave no times; ``reason`` is the stable code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run is to do: wait strategy, bytes each way, round trips, the cores of both ends."""

    wait: str
    size: int
    rounds: int
    cores: tuple[int, int]


def run_pair(python: Path, program: str, run: Run, folder: Path) -> tuple[str, float]:
    """Two processes of a peer program; its version and the median round trip, microseconds.

    Raises:
        RunError: an end failed, or the run passed its deadline.
    """
    told = {"wait": run.wait, "size": run.size, "rounds": run.rounds, "ports": free_ports()}
    told |= {"folder": str(folder), "seconds": ALARM_SECONDS}
    commands = []
    for rank in (1, 0):
        mine = json.dumps(told | {"rank": rank, "core": run.cores[rank]})
        commands.append([str(python), str(HERE / "peers" / program), mine])
    return parse_times(run_bounded(commands, folder)[-1])


def run_single(python: Path, program: str, run: Run, folder: Path) -> tuple[str, float]:
    """A program that starts its own second end; otherwise as ``run_pair``."""
    told = {"wait": run.wait, "size": run.size, "rounds": run.rounds, "seconds": ALARM_SECONDS}
    command = [str(python), str(HERE / "peers" / program), json.dumps(told)]
    return parse_times(run_bounded([command], folder)[0])


def parse_times(text: str) -> tuple[str, float]:
    """The version and the median of what rank 0 printed; the last line counts."""
    try:
        said: dict[str, Any] = json.loads(text.splitlines()[-1])
        return str(said["version"]), statistics.median(said["times_us"])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        came = text.strip()[-80:] or "nothing"
        raise RunError("no-times", f"expected a line with times, got {came}") from error


def free_ports() -> tuple[int, int]:
    """Two ports of loopback that were free a moment ago; a run that loses one fails by name."""
    with socket.socket() as first, socket.socket() as second:
        first.bind((LOOPBACK, 0))
        second.bind((LOOPBACK, 0))
        return first.getsockname()[1], second.getsockname()[1]


def run_bounded(commands: list[list[str]], folder: Path, seconds: float = RUN_SECONDS) -> list[str]:
    """What each command printed; all are over when this returns, well or not.

    Raises:
        RunError: one ended with an error, or they were not over within ``seconds``.
    """
    late = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        said = [
            stack.enter_context((folder / f"said-{n}").open("w+")) for n in range(len(commands))
        ]
        told = [
            stack.enter_context((folder / f"told-{n}").open("w+")) for n in range(len(commands))
        ]
        children: list[subprocess.Popen[str]] = []
        stack.callback(_end, children)
        for command, out, error in zip(commands, said, told, strict=True):
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                text=True,
                start_new_session=True,
            )
            children.append(child)
        _wait(children, told, late, seconds)
        return [_text(file) for file in said]


def _wait(
    children: list[subprocess.Popen[str]], told: Sequence[IO[str]], late: float, seconds: float
) -> None:
    while True:
        codes = [child.poll() for child in children]
        for code, file in zip(codes, told, strict=True):
            if code:
                last = (_text(file).strip().splitlines() or ["nothing said"])[-1]
                raise RunError("end-failed", f"expected exit code 0, got {code}: {last[:200]}")
        if None not in codes:
            return
        if time.monotonic() > late:
            raise RunError("run-late", f"expected the run to end within {seconds} s, it did not")
        time.sleep(POLL_SECONDS)


def _end(children: list[subprocess.Popen[str]]) -> None:
    # Each child leads a session of its own, so its id also names what it started.
    for child in children:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _text(file: IO[str]) -> str:
    file.flush()
    file.seek(0)
    return file.read()
