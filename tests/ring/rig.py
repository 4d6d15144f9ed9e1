"""Starts rings of real processes on loopback and reads what they say; it asserts nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelink.cli.keygen import write_key

if TYPE_CHECKING:
    from collections.abc import Callable

# Everything must end by itself long before; a test that gets here failed.
END_SECONDS = 40.0


class Node:
    """A process of the command line, its output, and how it ended."""

    def __init__(self, arguments: list[str], folder: Path, name: str, **options: Any) -> None:
        self.stdout, self.stderr = folder / f"{name}.out", folder / f"{name}.err"
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [*options.pop("within", ()), sys.executable, "-m", *arguments],
                stdin=options.pop("stdin", subprocess.DEVNULL),
                stdout=options.pop("to", out),
                stderr=err,
                start_new_session=True,
                **options,
            )

    def end(self, seconds: float = END_SECONDS) -> int:
        return self.process.wait(seconds)

    @property
    def text(self) -> str:
        return self.stdout.read_text(encoding="utf-8", errors="replace")

    @property
    def told(self) -> str:
        return self.stderr.read_text(encoding="utf-8", errors="replace")

    @property
    def errors(self) -> list[str]:
        """Its error lines; a traceback would be one too."""
        lines = self.told.splitlines()
        return [line for line in lines if line.startswith(("stagelink: error", "Traceback"))]

    @property
    def result(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.text)
        return read

    def children(self) -> dict[int, int]:
        """Process ids of the stages that it started, by rank."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                arguments = (entry / "cmdline").read_bytes().decode().split("\0")
                if parent == self.process.pid and "--rank" in arguments:
                    found[int(arguments[arguments.index("--rank") + 1])] = int(entry.name)
        return found


class Lab:
    """Starts processes for one test and ends those that it left."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.key = folder / "ring.key"
        write_key(self.key)
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "STAGELINK_CACHE": str(folder / "cache"),
        }
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "STAGELINK_TRACEBACK"):
            self.environment.pop(name, None)
        self.nodes: list[Node] = []

    def run(self, *arguments: str, **options: Any) -> Node:
        """`stagelink` with arguments."""
        return self._start("stagelink", list(arguments), f"run-{len(self.nodes)}", **options)

    def generate(self, *arguments: str, model: Path | None = None, **options: Any) -> Node:
        """`stagelink generate` on the tiny checkpoint."""
        return self.run("generate", str(model or self.model), *arguments, **options)

    def node(self, rank: int, world: int, *arguments: str, **options: Any) -> Node:
        """`stagelink node`, with this lab's key unless another is given."""
        place = [str(options.pop("model", self.model)), "--rank", str(rank), "--world", str(world)]
        if "--key-file" not in arguments:
            place += ["--key-file", str(self.key)]
        return self._start(
            "stagelink.node", [*place, *arguments], f"rank-{rank}-{len(self.nodes)}", **options
        )

    def lead(self, world: int, *arguments: str, **options: Any) -> tuple[Node, str]:
        """Rank 0 on a free port, and its address."""
        task = ["--prompt-ids", "1,2,3", "--max-tokens", "8", "--ignore-eos"]
        task = [] if "--prompt-ids" in arguments else task
        lead = self.node(0, world, "--listen", "127.0.0.1:0", *task, *arguments, **options)
        wait_for(lead, lambda: "listening on " in lead.told)
        return lead, lead.told.split("listening on ")[1].split(";")[0]

    def left_behind(self) -> list[Path]:
        """What launches left in the temporary folder."""
        return list(self.temporary.iterdir())

    def end(self) -> None:
        for node in self.nodes:
            for pid in [*node.children().values(), node.process.pid]:
                if node.process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            node.process.wait()

    def _start(self, module: str, arguments: list[str], name: str, **options: Any) -> Node:
        environment = {**self.environment, **options.pop("environment", {})}
        node = Node([module, *arguments], self.folder, name, env=environment, **options)
        self.nodes.append(node)
        return node


def wait_for(node: Node, fact: Callable[[], bool], seconds: float = END_SECONDS) -> None:
    """Look again and again until a fact holds, the process ends, or too much time passes."""
    ends_at = time.monotonic() + seconds
    while not fact():
        assert node.process.poll() is None, node.told
        assert time.monotonic() < ends_at, node.told
        time.sleep(0.02)


def ends_within(pids: list[int], seconds: float) -> bool:
    """Whether all processes are gone in time; a zombie is gone."""
    ends_at = time.monotonic() + seconds
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > ends_at:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
