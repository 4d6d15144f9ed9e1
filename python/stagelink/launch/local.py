"""Starts all stages of a ring as processes on this machine, and ends every one of them.

It knows processes, pipes and exit codes; what a stage computes and what is printed are not its
business. Children are ended by their own process id, SIGTERM first and SIGKILL after a grace.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from stagelink.launch.folder import LaunchFolder
from stagelink.launch.stage_process import StageProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType
    from typing import Self

    from stagelink.config import Job

# How often signals that came meanwhile are looked at; nothing else waits for it.
_LOOK_SECONDS = 0.5
# A survivor names a lost stage within a second (docs/protocol.md 8); the rest is for it to exit.
GRACE_SECONDS = 3.0
# A stage that heard rank 0's bye still has to take its libraries down, on a busy machine slowly.
ORDERLY_SECONDS = 30.0
KILL_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How the processes of a launch ended.

    Attributes:
        codes: Exit code by rank; negative is the signal that killed it, as `subprocess` has it.
        ended_by_us: Ranks that had to be ended, because another one had failed.
        order: Ranks in the order in which they ended.
    """

    codes: dict[int, int]
    ended_by_us: frozenset[int]
    order: tuple[int, ...]


@contextlib.contextmanager
def launch_folder() -> Iterator[LaunchFolder]:
    """Make a private folder, and remove it with everything in it."""
    with tempfile.TemporaryDirectory(prefix="stagelink-", ignore_cleanup_errors=True) as path:
        yield LaunchFolder(path)


class LocalLaunch:
    """The processes of one ring; leaving the ``with`` block ends those that still run.

    Attributes:
        signal: The last signal that asked for the end, if one did.
    """

    def __init__(
        self, folder: LaunchFolder, job: Job, *, flags: Mapping[str, str], listen: tuple[str, str],
        environments: Sequence[Mapping[str, str]],
    ) -> None:  # fmt: skip
        """Take what every stage is told; nothing is started yet.

        Args:
            folder: Holds the key; the job is written into it.
            job: The model and the task.
            flags: More flags of `stagelink node`, by name.
            listen: Host of all stages, and rank 0's port; ``"0"`` is any free one.
            environments: The whole environment of every rank's process.
        """
        self._folder = folder
        self._job = job
        self._flags = dict(flags)
        self._host, self._port = listen
        self._environments = environments
        self._launch_id = secrets.token_hex(16)
        self._stages: list[StageProcess] = []
        self._order: list[int] = []
        self._ended_by_us: set[int] = set()
        self._ends_at: float | None = None
        self.signal: int | None = None
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        """Start every stage."""
        self._job.write(self._folder.job_file)
        self._take_signals()
        # Children start with SIGINT held back and let it in once they can answer it.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for rank in range(self._job.model.world):
                self._stages.append(self._start(rank))
        except BaseException:
            self.__exit__()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        return self

    def __exit__(self, *exc: object) -> None:
        """End what still runs, by id, and give the signals back."""
        self._end(self._running())
        for stage in self._stages:
            stage.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def wait(self) -> Ending:
        """Wait until all stages ended; when one fails, the others get a grace and are ended.

        Rank 0 normally ends first, and the followers with its bye. A stage that failed is heard of
        by the others over the ring; only those that cannot hear it are ended from here.
        """
        with selectors.DefaultSelector() as selector:
            for stage in self._stages:
                selector.register(stage.sign_of_life, selectors.EVENT_READ, stage)
            while running := self._running():
                for key, _ in selector.select(self._look_seconds()):
                    self._read(key.data, selector)
                if len(self._running()) < len(running):
                    self._end_within(self._grace_seconds())
                if self._ends_at is not None and time.monotonic() >= self._ends_at:
                    self._end(self._running())
        codes = {stage.rank: stage.wait(KILL_SECONDS) for stage in self._stages}
        return Ending(codes, frozenset(self._ended_by_us), tuple(self._order))

    def last_words(self, rank: int) -> str:
        """Return the end of what a follower wrote to stderr."""
        return self._stages[rank].last_words

    def _look_seconds(self) -> float:
        if self._ends_at is None:
            return _LOOK_SECONDS
        return min(_LOOK_SECONDS, max(0.0, self._ends_at - time.monotonic()))

    def _grace_seconds(self) -> float:
        """How long the others have to hear of an end by themselves."""
        lead = self._stages[0]
        if not lead.is_running and lead.address is None:
            # There never was a ring that could tell them.
            return 0.0
        if self.signal is None and not any(stage.failed for stage in self._stages):
            return ORDERLY_SECONDS
        return GRACE_SECONDS if self.signal is None else KILL_SECONDS / 2

    def _end_within(self, seconds: float) -> None:
        """End what still runs after ``seconds``; an earlier end stands."""
        ends_at = time.monotonic() + seconds
        self._ends_at = ends_at if self._ends_at is None else min(self._ends_at, ends_at)

    def _read(self, stage: StageProcess, selector: selectors.BaseSelector) -> None:
        """Take what a stage says: rank 0's address, or that it ended."""
        if not stage.hear():
            selector.unregister(stage.sign_of_life)
            stage.wait(KILL_SECONDS)
            self._order.append(stage.rank)
        elif stage.rank == 0 and stage.address is not None:
            for follower in self._stages[1:]:
                follower.tell_lead(stage.address)

    def _start(self, rank: int) -> StageProcess:
        world = self._job.model.world
        # The rank comes first, where a narrow `ps` still shows it.
        # A stage that dies in native code leaves its Python stack on stderr, and so in the error.
        # With -P nothing in the current folder is imported in place of what is installed.
        command = [sys.executable, "-P", "-X", "faulthandler", "-m", "stagelink.node"]
        command += ["--rank", str(rank)]
        command += ["--world", str(world), self._job.model.model, "--launch-id", self._launch_id]
        command += ["--launch-folder", str(self._folder.path)]
        if world > 1:
            port = self._port if rank == 0 else "0"
            command += ["--listen", f"{self._host}:{port}"]
            command += ["--key-file", str(self._folder.key_file)]
        for name, value in self._flags.items():
            command += [name, value]
        return StageProcess(rank, command, self._environments[rank])

    def _running(self) -> list[StageProcess]:
        return [stage for stage in self._stages if stage.is_running]

    def _end(self, stages: list[StageProcess]) -> None:
        """End processes by id: asked first, then killed."""
        for stage in stages:
            self._ended_by_us.add(stage.rank)
            stage.send(signal.SIGTERM)
        ends_at = time.monotonic() + KILL_SECONDS
        for stage in stages:
            try:
                stage.wait(max(0.0, ends_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                stage.send(signal.SIGKILL)
                stage.wait(KILL_SECONDS)

    def _take_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # What nohup or a shell's background made silent stays silent.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Give a signal to rank 0, which ends the ring; where it cannot hear yet, end all now."""
        self.signal = number
        if number != signal.SIGINT:
            self._end_within(GRACE_SECONDS)
        if not self._stages or not self._stages[0].is_alive:
            self._end_within(0.0)
        else:
            self._stages[0].send(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
