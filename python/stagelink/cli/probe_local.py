"""`stagelink probe --local N`: the other ranks as processes of this machine, rank 0 in this one.

What it shows is this machine's loopback, not a network; the steps are those of any ring.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from stagelink.launch.stage_process import StageProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from stagelink.config import LinkConfig
    from stagelink.launch.folder import LaunchFolder

# After a failure the others hear of it over the ring within a second.
_GRACE_SECONDS = 3.0
_KILL_SECONDS = 2.0
# A follower that is still dialling does not hear that rank 0 gave up.
_FAILED_GRACE_SECONDS = 1.5


class LocalRanks:
    """The followers' processes; leaving the ``with`` block ends those that still run."""

    def __init__(
        self, config: LinkConfig, world: int, folder: LaunchFolder, flags: Mapping[str, str]
    ) -> None:
        """Take what every rank is told; nothing is started yet."""
        self._config = config
        self._world = world
        self._folder = folder
        self._flags = dict(flags)
        self._ranks: list[StageProcess] = []

    def start(self, address: str, environment: Mapping[str, str]) -> None:
        """Start every follower, once rank 0 listens on ``address``."""
        host = address.rpartition(":")[0]
        for rank in range(1, self._world):
            command = [sys.executable, "-m", "stagelink", "probe", "--rank", str(rank)]
            command += ["--world", str(self._world), "--lead", address, "--listen", f"{host}:0"]
            command += ["--key-file", str(self._folder.key_file)]
            command += ["--launch-folder", str(self._folder.path)]
            for name, value in self._flags.items():
                command += [name, value]
            self._ranks.append(StageProcess(rank, command, environment))

    def first_words(self) -> str | None:
        """The first failed follower's last line, with its rank; ``None`` where none failed."""
        for process in self._ranks:
            if not process.is_running and process.wait(0) != 0:
                last = process.last_words.splitlines()[-1:] or ["ended without a word"]
                return f"rank {process.rank}: {last[0].removeprefix('stagelink: error: ')}"
        return None

    def __enter__(self) -> Self:
        """Nothing yet."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Wait for the followers, then end those that did not hear, by id."""
        self._wait(None, _GRACE_SECONDS if exc[0] is None else _FAILED_GRACE_SECONDS)
        self._wait(signal.SIGTERM, _KILL_SECONDS)
        self._wait(signal.SIGKILL, _KILL_SECONDS)
        for process in self._ranks:
            process.close()

    def _wait(self, number: signal.Signals | None, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        running = [process for process in self._ranks if process.is_running]
        for process in running:
            if number is not None:
                process.send(number)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends_at - time.monotonic()))
