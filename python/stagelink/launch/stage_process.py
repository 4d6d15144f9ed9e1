"""One stage's process as its launcher sees it: pipes, last lines of stderr, exit code.

It decides nothing about the ring; `local` does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

# What a stage says once it can answer signals; any other line is rank 0's address.
ALIVE = "alive"
_STDERR_BYTES_MAX = 8192


class StageProcess:
    """A child process that ends with this one.

    Rank 0 keeps the terminal: it stays in the launcher's process group, reads standard input and
    writes standard output. A follower gets a group of its own, so that Ctrl-C reaches rank 0 only,
    and its stderr is kept for the case that it dies without a word.

    Attributes:
        rank: The stage's rank.
        sign_of_life: Descriptor that reads as ended when the process does.
        is_alive: It said that it can answer signals.
        address: Rank 0's address, once it said so.
    """

    def __init__(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process."""
        self.rank = rank
        self.is_alive = False
        self.address: str | None = None
        self._lead_told = False
        life_read, self._life = os.pipe()
        self.sign_of_life, sign_write = os.pipe()
        flags = ["--life-fd", str(life_read), "--address-fd", str(sign_write)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter and our own flags)
                [*command, *flags],
                env=dict(environment),
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                stderr=None if rank == 0 else subprocess.PIPE,
                pass_fds=(life_read, sign_write),
                process_group=None if rank == 0 else 0,
            )
        finally:
            os.close(life_read)
            os.close(sign_write)
        self._stderr = b""
        self._reader: threading.Thread | None = None
        if self._process.stderr is not None:
            self._reader = threading.Thread(target=self._keep_stderr, daemon=True)
            self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """The process has not ended."""
        return self._process.poll() is None

    @property
    def failed(self) -> bool:
        """The process has ended with another exit code than 0."""
        return self._process.poll() not in (None, 0)

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr; empty for rank 0, whose stderr is the launcher's."""
        if self._reader is not None:
            self._reader.join(1.0)
        return self._stderr.decode("utf-8", "replace").strip()

    def hear(self) -> bool:
        """Read what it said; False where it ended."""
        said = os.read(self.sign_of_life, 4096)
        for line in said.decode("ascii").split():
            if line == ALIVE:
                self.is_alive = True
            else:
                self.address = line
        return bool(said)

    def tell_lead(self, address: str) -> None:
        """Tell a follower rank 0's address, once."""
        if not self._lead_told:
            self._lead_told = True
            with contextlib.suppress(BrokenPipeError):
                os.write(self._life, f"{address}\n".encode("ascii"))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process alone; nothing where it ended already."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Wait for the exit code; `subprocess.TimeoutExpired` after ``seconds``."""
        return self._process.wait(seconds)

    def close(self) -> None:
        """Close the pipes of a process that ended."""
        os.close(self._life)
        os.close(self.sign_of_life)
        if self._reader is not None:
            self._reader.join(1.0)

    def _keep_stderr(self) -> None:
        """Keep the last bytes only: a stage may write for days."""
        if self._process.stderr is None:
            return
        with self._process.stderr as stream:
            while piece := stream.read1(4096):  # type: ignore[attr-defined]
                self._stderr = (self._stderr + piece)[-_STDERR_BYTES_MAX:]
