"""The private folder of one local launch: the key, the job, and what each stage left behind.

It is a set of paths and of small JSON files; whoever starts and ends processes is `local`.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class LaunchFolder:
    """Names and files of a folder that only its owner can enter.

    Attributes:
        path: The folder.
        key_file: The launch's own key.
        job_file: `stagelink.config.Job` of all ranks.
    """

    def __init__(self, path: str | Path) -> None:
        """Take a folder that exists."""
        self.path = Path(path)
        self.key_file = self.path / "key"
        self.job_file = self.path / "job.json"

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Rank 0 leaves what its task came to."""
        self._write("result.json", result)

    def read_result(self) -> dict[str, Any] | None:
        """Return what rank 0 left, if it got so far."""
        return self._read("result.json")

    def write_report(self, rank: int, report: Mapping[str, Any]) -> None:
        """A follower leaves the figures of its own loop."""
        self._write(f"report-{rank}.json", report)

    def read_report(self, rank: int) -> dict[str, Any] | None:
        """Return a follower's figures, if it got so far."""
        return self._read(f"report-{rank}.json")

    def write_error(self, rank: int, error: Mapping[str, Any], code: int) -> None:
        """A stage leaves why it failed, and its exit code."""
        self._write(f"error-{rank}.json", {**error, "code": code})

    def read_error(self, rank: int) -> dict[str, Any] | None:
        """Return why a stage failed, if it could say."""
        return self._read(f"error-{rank}.json")

    @property
    def logits_file(self) -> Path:
        """Where rank 0 of a verification puts the logits that it gets."""
        return self.path / "logits.record"

    def rows_file(self, rank: int) -> Path:
        """Where a stage of a verification puts the rows that it makes."""
        return self.path / f"rows-{rank}.record"

    def states_file(self, rank: int) -> Path:
        """Where a stage of a verification puts the digests of its states."""
        return self.path / f"states-{rank}.record"

    def remove(self) -> None:
        """Remove the folder's own files and the folder; a file of another name is left alone."""
        # Several stages may do this at once: what one has removed the others no longer find.
        with contextlib.suppress(OSError):
            for pattern in ("key", "*.json", ".*.json.*", "*.record"):
                for path in self.path.glob(pattern):
                    path.unlink(missing_ok=True)
            self.path.rmdir()

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a whole file or none: the launcher reads while stages may be killed."""
        unfinished = self.path / f".{name}.{os.getpid()}"
        unfinished.write_text(json.dumps(value), encoding="utf-8")
        unfinished.replace(self.path / name)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            read: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return read
