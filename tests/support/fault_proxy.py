"""Starts the fault proxy (rust/fault) in front of a listening address.

It builds the program when it is missing or older than its source, and knows no command itself:
the lines that `command` takes are those of `rust/fault/src/parse.rs`.
"""

import json
import os
import selectors
import subprocess
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = "stagelink-fault-proxy"
BUILD_SECONDS = 300.0
ANSWER_SECONDS = 10.0


class FaultProxyError(Exception):
    """The proxy refused a command, ended or did not answer; `reason` is a stable code."""

    def __init__(self, reason: str, text: str) -> None:
        """Keep the code beside the text."""
        super().__init__(f"{reason}: {text}")
        self.reason = reason


@cache
def program() -> Path:
    """Return the built program; `STAGELINK_FAULT_PROXY` names one that is built already."""
    named = os.environ.get("STAGELINK_FAULT_PROXY")
    if named:
        return Path(named)
    build = ["cargo", "build", "--quiet", "--package", "stagelink-fault", "--message-format=json"]
    done = subprocess.run(
        build, cwd=REPOSITORY, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if done.returncode != 0:
        raise FaultProxyError("build", f"cargo could not build {PROGRAM}: {done.stderr[-2000:]}")
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == PROGRAM:
            return Path(message["executable"])
    raise FaultProxyError("build", f"cargo named no executable for {PROGRAM}")


class FaultProxy:
    """A running proxy: peers dial `address` instead of the target's own.

    Use it as a context manager; leaving it ends the program and every connection through it.
    """

    address: str

    def __init__(self, target: str, *, listen: str = "127.0.0.1:0", seed: int = 0) -> None:
        """Start in front of `target` (HOST:PORT), which need not listen yet."""
        arguments = ["--target", target, "--listen", listen, "--seed", str(seed)]
        self._process = subprocess.Popen(
            [program(), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self.address = self._line()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port of `address`."""
        return int(self.address.rpartition(":")[2])

    def command(self, line: str) -> dict[str, Any]:
        """Carry out one command; returns what the proxy answers after `ok`.

        From the return on no byte passes against the command.

        Raises:
            FaultProxyError: the proxy refused it, ended, or did not answer in ten seconds.
        """
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise FaultProxyError("ended", "the proxy takes no commands any more") from error
        verdict, _, rest = self._line().partition(" ")
        if verdict != "ok":
            reason, _, text = rest.partition(": ")
            raise FaultProxyError(reason, f"{text} (command {line!r})")
        answer: dict[str, Any] = json.loads(rest)
        return answer

    def status(self) -> list[dict[str, Any]]:
        """What each connection did so far, in the order in which they came."""
        connections: list[dict[str, Any]] = self.command("status")["connections"]
        return connections

    def close(self) -> None:
        """End the program and every connection through it; a second call does nothing."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _line(self) -> str:
        """Read one line of the program's output within the deadline."""
        stdout = self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            # A line is written with one flush, so that it is there whole once any of it is.
            if not selector.select(ANSWER_SECONDS):
                raise FaultProxyError("deadline", f"no answer after {ANSWER_SECONDS} s")
        line = stdout.readline()
        if not line:
            raise FaultProxyError("ended", f"the proxy ended with {self._process.poll()}")
        return line.decode().rstrip("\n")
