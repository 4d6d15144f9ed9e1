"""SHA-256 of files, of parts of them and of what follows from one, remembered beside its stat.

A remembered digest is used only while device, inode, size, mtime and ctime are what they were, and
is not remembered at all for a file that changed just before it was hashed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from typing import TYPE_CHECKING

from stagelink.checkpoint import strict_json
from stagelink.checkpoint.limits import CONFIG_BYTES_MAX, HASH_PIECE_BYTES, RACY_NANOSECONDS
from stagelink.checkpoint.user_cache import private_folder, write_whole
from stagelink.checkpoint.weight_file import FileIdentity, WeightFile
from stagelink.errors import StagelinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_FORMAT = 1


@dataclasses.dataclass(slots=True)
class Digests:
    """Computes digests, and remembers them in the user's cache folder unless told not to.

    Attributes:
        remember: Whether the cache folder is read and written.
        progress: Called as ``progress("hash FILE", done, total)`` while hashing.
        hashed_bytes: Bytes hashed so far, because nothing was remembered.
    """

    remember: bool = True
    progress: Callable[[str, int, int], None] | None = None
    hashed_bytes: int = 0

    def of_file(self, file: WeightFile) -> bytes:
        """Return the SHA-256 of the whole file."""
        return self.of_range(file, 0, file.size)

    def of_files(self, files: Iterable[WeightFile]) -> bytes:
        """Return what stands for the content of one or several files of a checkpoint.

        One: its SHA-256. Several: SHA-256 over the canonical JSON of ``[[name, hex digest], ...]``
        in order of name.
        """
        named = sorted({file.path.name: file for file in files}.items())
        each = [[name, self.of_file(file).hex()] for name, file in named]
        if len(each) == 1:
            return bytes.fromhex(each[0][1])
        return hashlib.sha256(strict_json.canonical(each)).digest()

    def of_range(self, file: WeightFile, begin: int, end: int) -> bytes:
        """Return the SHA-256 of bytes ``begin..end``.

        Raises:
            CheckpointError: ``file_changed`` when the file changes while it is hashed.
        """
        return self.of_made(file, f"{begin}-{end}", lambda: self._hash(file, begin, end))

    def of_made(self, file: WeightFile, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the digest that ``make`` computes of something that follows from the file alone.

        ``name`` says of what, and by which version of the rules.
        """
        known = self._recall(file.identity)
        if name in known:
            return bytes.fromhex(known[name])
        started = time.time_ns()
        digest = make()
        youngest = max(file.identity.mtime_ns, file.identity.ctime_ns)
        if self.remember and youngest + RACY_NANOSECONDS < started:
            # Read again: what was made may have been made of other digests of the file.
            self._store(file.identity, self._recall(file.identity) | {name: digest.hex()})
        return digest

    def _hash(self, file: WeightFile, begin: int, end: int) -> bytes:
        hasher = hashlib.sha256()
        piece = memoryview(bytearray(min(HASH_PIECE_BYTES, end - begin)))
        with file.descriptor() as descriptor:
            for offset in range(begin, end, HASH_PIECE_BYTES):
                view = piece[: min(HASH_PIECE_BYTES, end - offset)]
                file.read_into(descriptor, view, offset)
                hasher.update(view)
                self.hashed_bytes += len(view)
                if self.progress is not None:
                    done = offset + len(view) - begin
                    self.progress(f"hash {file.path.name}", done, end - begin)
            if FileIdentity.of(os.fstat(descriptor)) != file.identity:
                raise file.changed()
        return hasher.digest()

    def _recall(self, identity: FileIdentity) -> dict[str, str]:
        if not self.remember:
            return {}
        try:
            record = strict_json.read_object(_record_path(identity), CONFIG_BYTES_MAX)
        except StagelinkError:
            return {}
        if record.get("format") != _FORMAT or record.get("stat") != _facts(identity):
            return {}
        known = record.get("sha256")
        if not isinstance(known, dict):
            return {}
        return {key: value for key, value in known.items() if _is_digest(value)}

    def _store(self, identity: FileIdentity, known: dict[str, str]) -> None:
        record = {"format": _FORMAT, "stat": _facts(identity), "sha256": known}
        try:
            write_whole(_record_path(identity), strict_json.canonical(record))
        except (OSError, StagelinkError):
            # A full or read-only cache costs time at the next start, nothing else.
            return


def _facts(identity: FileIdentity) -> list[int]:
    return list(dataclasses.astuple(identity))


def _record_path(identity: FileIdentity) -> Path:
    return private_folder("digests") / f"{identity.device:x}-{identity.inode:x}.json"


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
