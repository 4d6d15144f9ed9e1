"""A started stage's side of its launch: it ends with its launcher, and tells it its address.

The launcher holds one end of a pipe; when that closes, whatever the reason, the stage ends. This
works where no signal would come: the launcher killed with SIGKILL, on any system.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, NoReturn

from stagelink.errors import DeadlineError

if TYPE_CHECKING:
    from types import FrameType

    from stagelink.launch.folder import LaunchFolder

TERMINATED = 128 + signal.SIGTERM
_GRACE_SECONDS = 2.0
_PIECE_BYTES = 512


def end_on_terminate() -> None:
    """Make SIGTERM an orderly end: the ring hears of it, and the exit code is 143."""
    signal.signal(signal.SIGTERM, _terminate)


class Launcher:
    """The launcher as a stage sees it: it may say one line, and this process ends with it."""

    def __init__(self, life_fd: int, folder: LaunchFolder) -> None:
        """Listen on the pipe from now on; the folder is removed where the launcher cannot."""
        self._life_fd = life_fd
        self._folder = folder
        self._said = b""
        self._is_line = threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="launcher").start()

    @property
    def is_gone(self) -> bool:
        """Its end of the pipe is closed; known here before the thread below has acted on it."""
        poll = select.poll()
        poll.register(self._life_fd, select.POLLIN)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    def address(self, seconds: float) -> str:
        """Return rank 0's address, which the launcher passes on.

        Raises:
            DeadlineError: reason ``never_joined`` where none came within ``seconds``.
        """
        if not self._is_line.wait(seconds):
            raise DeadlineError(
                f"expected rank 0's address from the launcher within {seconds:g} s, got none",
                reason="never_joined",
                rank=0,
                operation="join",
                seconds=seconds,
            )
        return self._said.split(b"\n", 1)[0].decode("ascii")

    def _listen(self) -> None:
        while piece := os.read(self._life_fd, _PIECE_BYTES):
            if not self._is_line.is_set():
                self._said += piece
                if b"\n" in self._said:
                    self._is_line.set()
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            self._folder.remove()
            time.sleep(_GRACE_SECONDS)
        finally:
            os._exit(TERMINATED)


def say(address_fd: int, line: str) -> None:
    """Tell the launcher one line; the descriptor stays open as a sign of life."""
    # Where the launcher is gone, its closed pipe ends this process soon.
    with contextlib.suppress(BrokenPipeError):
        os.write(address_fd, f"{line}\n".encode("ascii"))


def _terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 (signal's form)
    # Once is enough; a second SIGTERM must not tear the goodbye apart.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(TERMINATED)
