"""Reads byte ranges of one weight file, and notices when the file is no longer the one opened.

It knows no format. Every read is a pread of exactly what was asked; nothing is memory-mapped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from typing import TYPE_CHECKING

from stagelink.checkpoint.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class FileIdentity:
    """The facts of a file's stat that change when its content does."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Take the facts from a stat."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )


@dataclasses.dataclass(frozen=True, slots=True)
class WeightFile:
    """A regular file and its identity when it was opened first."""

    path: Path
    identity: FileIdentity

    @classmethod
    def find(cls, path: Path) -> WeightFile:
        """Look at the file.

        Raises:
            CheckpointError: ``file_missing`` or ``file_kind``.
        """
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            got = getattr(error, "strerror", None) or str(error)
            advice = "check the path"
            raise refuse("file_missing", path, expected="a file", got=got, advice=advice) from None
        if not stat.S_ISREG(status.st_mode):
            advice = "name a weight file"
            raise refuse(
                "file_kind", path, expected="a regular file", got="another kind", advice=advice
            )
        return cls(path, FileIdentity.of(status))

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.identity.size

    @contextlib.contextmanager
    def descriptor(self) -> Iterator[int]:
        """Open the file for reading while the block runs.

        Raises:
            CheckpointError: ``file_missing``, or ``file_changed`` when it is another file now.
        """
        try:
            # Not blocking: a pipe may have taken the file's place.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            got = error.strerror or str(error)
            raise refuse(
                "file_missing", self.path, expected="a file", got=got, advice="check the path"
            ) from None
        try:
            if FileIdentity.of(os.fstat(descriptor)) != self.identity:
                raise self.changed()
            yield descriptor
        finally:
            os.close(descriptor)

    def read_into(self, descriptor: int, view: memoryview, offset: int) -> None:
        """Fill ``view`` (bytes) from ``offset``.

        Raises:
            CheckpointError: ``truncated`` or ``read_failed``.
        """
        done = 0
        while done < len(view):
            try:
                count = os.preadv(descriptor, [view[done:]], offset + done)
            except OSError as error:
                got = error.strerror or str(error)
                advice = "check the disk"
                raise refuse(
                    "read_failed", self.path, expected="readable bytes", got=got, advice=advice
                ) from None
            if count == 0:
                got = f"the end of the file at {offset + done}"
                raise refuse(
                    "truncated",
                    self.path,
                    expected=f"{len(view)} bytes at {offset}",
                    got=got,
                    advice="fetch the file again",
                )
            done += count

    def changed(self) -> Exception:
        """Return the error for a file that was replaced or written while it was in use."""
        return refuse(
            "file_changed",
            self.path,
            expected="the file that was opened",
            got="another size, time or inode",
            advice="start again once nothing writes to it",
        )
