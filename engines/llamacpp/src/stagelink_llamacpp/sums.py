"""Checksums of a cached file's tensors: written beside it, and compared while it is loaded.

It writes and deletes no weights. A disk or a copy that went wrong leaves a file with the right size
and head, and llama.cpp would compute with what is in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import zlib
from typing import TYPE_CHECKING

from stagelink.engine import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_PIECE_BYTES = 1 << 20
_LINE = re.compile(r"[0-9a-f]{8}")
_LINE_BYTES = 9
_START_SECONDS, _BYTES_A_SECOND = 60.0, 10_000_000
_TELL_SECONDS = 0.5

# First byte and bytes of a tensor in the file.
Spans = tuple[tuple[int, int], ...]
# Device, inode, bytes, and the time of the last change.
Identity = tuple[int, int, int, int]


def sums_path(path: Path) -> Path:
    """Return where the checksums of the file at ``path`` lie."""
    return path.with_name(f"{path.name}.sums")


def encode_sums(sums: Sequence[int]) -> bytes:
    """Return the CRC-32 of each tensor, in the order of the file, as they are stored."""
    return "".join(f"{one:08x}\n" for one in sums).encode()


def read_sums(path: Path, count: int) -> tuple[int, ...] | None:
    """Return the ``count`` checksums of the file at ``path``; ``None`` where they are not there.

    Raises:
        OSError: They could not be read.
    """
    try:
        with sums_path(path).open("rb") as file:
            data = file.read(count * _LINE_BYTES + 1)
    except FileNotFoundError:
        return None
    lines = data.decode("ascii", errors="replace").splitlines()
    if len(data) != count * _LINE_BYTES or not all(map(_LINE.fullmatch, lines)):
        return None
    return tuple(int(line, 16) for line in lines)


class Comparison:
    """Compares files with their checksums in a thread of its own, while llama.cpp loads them.

    The bytes come from the disk once: the other reader finds them in the system's cache. Every file
    is open before the first one is loaded; where it is still the one under its name afterwards, the
    bytes that were compared are those that were loaded.
    """

    def __init__(self, files: Mapping[Path, Spans]) -> None:
        """Begin; ``files`` has where the tensors of each file lie.

        Raises:
            OSError: ``FileNotFoundError`` where another process has deleted a file.
        """
        self._files = files
        with contextlib.ExitStack() as made:
            self._open = {path: made.enter_context(path.open("rb", buffering=0)) for path in files}
            self._identities = {
                path: identity(os.fstat(file.fileno())) for path, file in self._open.items()
            }
            made.pop_all()
        self._equal: set[Path] = set()
        self._damaged: list[Path] = []
        self._unread: dict[Path, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._compare, daemon=True)
        self._thread.start()

    def damaged(self, alive: Callable[[], None]) -> list[Path]:
        """Wait for the end and return the files that held other bytes; ``alive`` is called often.

        Raises:
            CheckpointError: ``slice_check`` where there is no end, or a file could not be compared.
        """
        size = sum(nbytes for spans in self._files.values() for _, nbytes in spans)
        seconds = _START_SECONDS + size / _BYTES_A_SECOND
        deadline = time.monotonic() + seconds
        while self._thread.is_alive():
            self._thread.join(_TELL_SECONDS)
            alive()
            if time.monotonic() > deadline:
                self._over.set()
                raise _unchecked(
                    f"llamacpp engine: expected to read {size} bytes of the cache again in "
                    f"{seconds:.0f} s, got no end; look for a disk that fails"
                )
        for path in self._files:
            if path not in self._equal and path not in self._damaged:
                got = self._unread.get(path, "no answer")
                raise _unchecked(
                    f"{path}: expected to compare it with its checksums, got {got}; start the "
                    "stage again, and look for a disk that fails"
                )
        return list(self._damaged)

    def identity_of(self, path: Path) -> Identity:
        """Return what tells the file that is compared from another one of its name."""
        return self._identities[path]

    def replaced(self) -> list[Path]:
        """Return the names under which another file lies now, or none, or the same one changed."""
        return [path for path, own in self._identities.items() if not is_there(path, own)]

    def close(self) -> None:
        """Compare no more; what was found stays."""
        self._over.set()
        self._thread.join(_TELL_SECONDS)
        if not self._thread.is_alive():
            for file in self._open.values():
                file.close()

    def _compare(self) -> None:
        for path, spans in self._files.items():
            try:
                sums = read_sums(path, len(spans))
                is_equal = self._is_equal(self._open[path].fileno(), spans, sums)
            except Exception as error:  # noqa: BLE001 - whatever it is, the file is not known good
                self._unread[path] = getattr(error, "strerror", None) or repr(error)
                continue
            if self._over.is_set():
                return
            if is_equal:
                self._equal.add(path)
            else:
                self._damaged.append(path)

    def _is_equal(self, descriptor: int, spans: Spans, sums: tuple[int, ...] | None) -> bool:
        piece = memoryview(bytearray(_PIECE_BYTES))
        try:
            return sums is not None and all(
                self._over.is_set() or _sum(descriptor, span, piece, self._over) == told
                for span, told in zip(spans, sums, strict=True)
            )
        except OSError:
            # What the disk does not give is made again.
            return False


def identity(status: os.stat_result) -> Identity:
    """Return what no two files have that lay under one name after each other."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_there(path: Path, own: Identity) -> bool:
    """Say whether the file under a name is the one with this identity, unchanged."""
    try:
        return identity(path.stat()) == own
    except FileNotFoundError:
        return False


def _unchecked(text: str) -> CheckpointError:
    return CheckpointError(text, reason="slice_check", operation="check stage file")


def _sum(descriptor: int, span: tuple[int, int], piece: memoryview, over: threading.Event) -> int:
    """Return the CRC-32 of a span of a file; of what is there of it, where the file is shorter."""
    begin, left = span
    found = 0
    while left and not over.is_set():
        got = os.preadv(descriptor, [piece[: min(left, len(piece))]], begin)
        if not got:
            break
        found = zlib.crc32(piece[:got], found)
        begin, left = begin + got, left - got
    return found
