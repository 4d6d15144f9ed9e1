"""The processes of bench/llamacpp.py: started once a wire, asked in turn, ended by their ids.

It decides neither what they do nor how often.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from llamacpp_tasks import CONTEXT, STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llamacpp_tasks import Task
    from llamacpp_wires import Between, Loopback

HERE = Path(__file__).resolve().parent
START_SECONDS, TASK_SECONDS, LISTEN_SECONDS = 120.0, 300.0, 2.0
# llama.cpp counts from the end, and the head is one: so many of 30 layers lie behind the server.
REMOTE_LAYERS = 16


class ContenderError(Exception):
    """A process did not start, ended or did not answer; the text says what it last printed."""


class Contender:
    """A process that answers a task a line; its errors are kept for a failure's text."""

    def __init__(self, command: Sequence[str], folder: Path, name: str) -> None:
        self._errors = folder / f"{name.replace(' ', '-')}-{secrets.token_hex(4)}.log"
        self._lines: queue.Queue[str | None] = queue.Queue()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        threading.Thread(target=self._read, daemon=True).start()

    def said(self, pattern: str, seconds: float = START_SECONDS) -> str:
        """The first line of standard error that holds ``pattern``."""
        for _ in range(int(seconds * 10)):
            for line in self._errors.read_text(errors="replace").splitlines():
                if pattern in line:
                    return line.strip()
            if self._process.poll() is not None:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        raise ContenderError(f"no {pattern!r}: {self._tail()}")

    def ready(self) -> None:
        """Wait until it takes tasks."""
        self._answer(START_SECONDS)

    def ask(self, task: Task) -> dict[str, float]:
        """One task and its figures."""
        if self._process.stdin is None:
            raise ContenderError("no standard input")
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(dataclasses.asdict(task)) + "\n")
            self._process.stdin.flush()
        return self._answer(TASK_SECONDS)

    def end(self) -> None:
        """End it, by its input and then by its id."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it by its id."""
        self._process.kill()
        self._process.wait()

    def _answer(self, seconds: float) -> dict[str, float]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise ContenderError(f"no answer after {seconds:g} s: {self._tail()}") from None
        if line is None:
            raise ContenderError(f"ended: {self._tail()}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(None)

    def _tail(self) -> str:
        return " | ".join(self._errors.read_text(errors="replace").splitlines()[-4:])


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all share: the file, its layers, threads of each, a folder, how the ring waits."""

    model: str
    layers: int
    threads: int
    folder: Path
    wait: str = "adaptive"


@contextlib.contextmanager
def whole(setup: Setup) -> Iterator[Contender]:
    """llama.cpp with the whole model in one process."""
    with _running(_native(setup, "model", setup.model, f"{setup.threads}"), setup, "whole") as one:
        one.ready()
        yield one


@contextlib.contextmanager
def rpc(setup: Setup, place: Loopback | Between) -> Iterator[Contender]:
    """llama.cpp with half of the layers behind its RPC server, a process of rank 1's host."""
    endpoint = place.rpc(_free_port())
    served = [*place.within(1), *_native(setup, "server", endpoint, f"{setup.threads}")]
    with contextlib.ExitStack() as stack:
        server = Contender(served, setup.folder, "rpc server")
        stack.callback(server.kill)
        server.said("server on")
        # It says nothing once it listens, and a connection to ask would be its only client.
        time.sleep(LISTEN_SECONDS)
        words = ("model", setup.model, f"{setup.threads}", endpoint, f"{REMOTE_LAYERS}")
        command = [*place.within(0), *_native(setup, *words)]
        one = stack.enter_context(_running(command, setup, "rpc"))
        one.ready()
        yield one


@contextlib.contextmanager
def ring(setup: Setup, place: Loopback | Between, world: int) -> Iterator[Contender]:
    """Our ring of ``world`` stages, a process each; rank 0 takes the tasks."""
    cuts = [rank * setup.layers // world for rank in range(world + 1)]
    layers = ",".join(f"{first}-{end}" for first, end in itertools.pairwise(cuts))
    key = setup.folder / f"key-{secrets.token_hex(4)}"
    descriptor = os.open(key, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(descriptor, secrets.token_bytes(32))
    os.close(descriptor)
    threads = f"{setup.threads}"
    words = [setup.model, layers, place.listen(0), str(key), threads, setup.wait]
    lead = [*place.within(0), sys.executable, str(HERE / "llamacpp_lead.py"), *words]
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(_running(lead, setup, f"ring {world}"))
        address = one.said(":").split()[-1]
        for rank in range(1, world):
            command = [
                *place.within(rank), sys.executable, "-m", "stagelink.node", setup.model,
                "--rank", f"{rank}", "--world", f"{world}", "--layers", layers, "--lead", address,
                "--listen", place.listen(rank), "--key-file", str(key), "--engine", "llamacpp",
                "--context", f"{CONTEXT}", "--streams-max", f"{STREAMS}", "--threads", threads,
                "--wait", setup.wait, "--quiet",
            ]  # fmt: skip
            stack.enter_context(_running(command, setup, f"follower {rank}"))
        one.ready()
        yield one
        # Rank 0's bye lets the followers end in order.
        one.end()


@dataclasses.dataclass(frozen=True)
class Fresh:
    """A ring that is started for each task: one that spins takes whole cores while it idles."""

    setup: Setup
    place: Loopback | Between
    world: int

    def ask(self, task: Task) -> dict[str, float]:
        """Start it, warm it up, ask, and end it."""
        with ring(self.setup, self.place, self.world) as one:
            one.ask(dataclasses.replace(task, rows=min(task.rows, 64), steps=min(task.steps, 4)))
            return one.ask(task)


@contextlib.contextmanager
def _running(command: Sequence[str], setup: Setup, name: str) -> Iterator[Contender]:
    one = Contender(command, setup.folder, name)
    try:
        yield one
    finally:
        one.end()


def _native(setup: Setup, *words: str) -> list[str]:
    del setup
    return [sys.executable, str(HERE / "llamacpp_native.py"), *words]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
