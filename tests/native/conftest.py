"""Key files and ring processes for the tests of the extension.

Every process that is started here is ended here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).with_name("stage_process.py")


@pytest.fixture
def stage() -> ModuleType:
    """The functions of stage_process.py, for the rank that the test itself plays."""
    spec = importlib.util.spec_from_file_location("stage_process", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_key(path: Path, key: bytes = bytes(range(32)), mode: int = 0o600) -> str:
    """Write a key file with exactly this mode; returns its path."""
    path.write_bytes(key)
    path.chmod(mode)
    return str(path)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    """A good key file."""
    return write_key(tmp_path / "key")


@dataclasses.dataclass
class Stage:
    """A rank in a process of its own."""

    process: subprocess.Popen[str]

    def next(self, event: str) -> dict[str, Any]:
        """The next line that it writes, which must be ``event``."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        told: dict[str, Any] = json.loads(line or '{"event": "ended"}')
        assert told["event"] == event, told
        return told

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        os.kill(self.process.pid, number)


Spawn = Callable[..., Stage]


@pytest.fixture
def spawn(key_file: str) -> Iterator[Spawn]:
    """Start a rank: ``spawn(rank, world, lead_address, mode="follow")``."""
    with contextlib.ExitStack() as stack:

        def start(rank: int, world: int, lead: str, mode: str = "follow") -> Stage:
            command = [sys.executable, str(SCRIPT), str(rank), str(world), lead, key_file, mode]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(end, process)
            return Stage(process)

        yield start


def end(process: subprocess.Popen[str]) -> None:
    """End a process whatever it does, and take its exit."""
    process.kill()
    process.wait(10)
    if process.stdout is not None:
        process.stdout.close()
