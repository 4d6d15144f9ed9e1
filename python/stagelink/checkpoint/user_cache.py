"""Finds the user's cache folder and keeps what is in it private and whole.

It knows no checkpoint. Files appear under their name complete or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stagelink.checkpoint.limits import LOCK_POLL_SECONDS
from stagelink.errors import ConfigError, DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def cache_root() -> Path:
    """Return the folder: ``$STAGELINK_CACHE``, else ``stagelink`` in the user's cache folder.

    Raises:
        ConfigError: ``cache_folder`` when nothing says where it is.
    """
    own = os.environ.get("STAGELINK_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and Path(shared).is_absolute():
        return Path(shared) / "stagelink"
    base = "Library/Caches" if sys.platform == "darwin" else ".cache"
    try:
        return Path.home() / base / "stagelink"
    except RuntimeError:
        message = (
            "HOME: expected a home folder for the cache, got none; set STAGELINK_CACHE, or use "
            "--no-cache"
        )
        raise ConfigError(message, reason="cache_folder") from None


def private_folder(name: str, *, needed: bool = False) -> Path:
    """Return a folder below the cache root that only this user can write; make it if absent.

    ``needed`` says that ``--no-cache`` does not do without it.

    Raises:
        ConfigError: ``cache_folder`` when it cannot be made or others can write to it.
    """
    folder = cache_root() / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        message = (
            f"{folder}: expected a cache folder that can be made, got {error.strerror}; "
            f"set STAGELINK_CACHE to a folder of yours{'' if needed else ', or use --no-cache'}"
        )
        raise ConfigError(message, reason="cache_folder") from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        message = (
            f"{folder}: expected a folder that only you can write, got owner {status.st_uid} and "
            f"mode {status.st_mode & 0o777:o}; set STAGELINK_CACHE to another folder"
        )
        raise ConfigError(message, reason="cache_folder")
    return folder


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or all of the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, seconds: float, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file while the block runs; the system frees it when its holder dies.

    Args:
        path: The lock file; it stays, since removing it would let two holders in.
        seconds: Longest wait.
        waiting: Called once when another process holds it.

    Raises:
        DeadlineError: ``lock_deadline`` when it was not free in time.
    """
    deadline = time.monotonic() + seconds
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        said = False
        while not _try_lock(descriptor):
            if not said:
                waiting()
                said = True
            if time.monotonic() >= deadline:
                message = (
                    f"{path}: expected another process to finish within {seconds:.0f} s, got no "
                    "end; look for a stuck stagelink, or use --no-cache"
                )
                raise DeadlineError(message, reason="lock_deadline", seconds=seconds)
            time.sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
