"""One Python environment for each peer, under bench/build, made on demand with uv.

It runs no peer; an environment counts as there only once its installation has finished.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build" / "peers"
INSTALL_SECONDS = 900
WHEELS_VARIABLE = "STAGELINK_WHEELS"


class InstallError(Exception):
    """A peer's environment could not be made; ``reason`` is the stable code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where one peer lives and what it needs; no requirement = this interpreter will do."""

    name: str
    requirement: str | None

    @property
    def folder(self) -> Path:
        """The environment's own folder."""
        return BUILD / self.name

    @property
    def python(self) -> Path:
        """The interpreter that runs the peer."""
        if self.requirement is None:
            return Path(sys.executable)
        return self.folder / "bin" / "python"

    def missing(self) -> str | None:
        """Why the peer cannot run, or None when it can."""
        if self.requirement is None or self._finished.exists():
            return None
        return f"not installed; run python bench/peers.py --install {self.name}"

    @property
    def _finished(self) -> Path:
        return self.folder / "finished"

    def install(self) -> None:
        """Make the environment afresh; does nothing for a peer that needs none.

        Raises:
            InstallError: uv is absent, or it failed or ran past its limit.
        """
        if self.requirement is None:
            return
        uv = _find_uv()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(self.folder)], self.name)
        command = [uv, "pip", "install", "--quiet", "--python", str(self.python)]
        _run([*command, *requirement_arguments(self.requirement, wheels())], self.name)
        self._finished.touch()


def wheels() -> Path | None:
    """The folder of ready wheels: the variable's, or the one beside the project, or none."""
    named = os.environ.get(WHEELS_VARIABLE)
    folder = Path(named) if named else HERE.parent.parent / "shared" / "wheels"
    return folder if folder.is_dir() else None


def requirement_arguments(requirement: str, folder: Path | None) -> list[str]:
    """What to install: a wheel's exact version where ``folder`` has one that fits, else by name.

    The version is pinned because an index may hold a newer, far larger build of the same name.
    """
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    pattern = re.compile(rf"{re.escape(requirement)}-([^-]+)-{tag}-[^/]*\.whl")
    for wheel in sorted(folder.iterdir(), reverse=True) if folder else []:
        if found := pattern.fullmatch(wheel.name):
            return ["--find-links", str(folder), f"{requirement}=={found[1]}"]
    return [requirement]


def _find_uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise InstallError("no-uv", "expected uv beside this python or on PATH, found none")
    return uv


def _run(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"{name}: expected uv to end within {INSTALL_SECONDS} s, it did not; try again"
        raise InstallError("install-late", text) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise InstallError("install-failed", f"{name}: uv ended with {done.returncode}: {last}")
