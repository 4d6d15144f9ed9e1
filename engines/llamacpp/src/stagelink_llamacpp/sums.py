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


def sums_path(path: Path) -> Path:
    """Return where the checksums of the file at ``path`` lie."""
    return path.with_name(f"{path.name}.sums")


def encode_sums(sums: Sequence[int]) -> bytes:
    """Return the CRC-32 of each tensor, in the order of the file, as they are stored."""
    return "".join(f"{one:08x}\n" for one in sums).encode()


def read_sums(path: Path, count: int) -> tuple[int, ...] | None:
    """Return the ``count`` checksums of the file at ``path``; ``None`` where they are not there."""
    try:
        with sums_path(path).open("rb") as file:
            data = file.read(count * _LINE_BYTES + 1)
    except OSError:
        return None
    lines = data.decode("ascii", errors="replace").splitlines()
    if len(data) != count * _LINE_BYTES or not all(map(_LINE.fullmatch, lines)):
        return None
    return tuple(int(line, 16) for line in lines)


class Comparison:
    """Compares files with their checksums in a thread of its own, while llama.cpp loads them.

    The bytes come from the disk once: the other reader finds them in the system's cache.
    """

    def __init__(self, files: Mapping[Path, Spans]) -> None:
        """Begin; ``files`` has where the tensors of each file lie."""
        self._files = files
        # With what tells a file from another one that another process has put in its place.
        self._damaged: dict[Path, tuple[int, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._compare, daemon=True)
        self._thread.start()

    def damaged(self, alive: Callable[[], None]) -> list[Path]:
        """Wait for the end and return the files that held other bytes; ``alive`` is called often.

        Raises:
            CheckpointError: ``slice_check`` where there is no end.
        """
        size = sum(nbytes for spans in self._files.values() for _, nbytes in spans)
        seconds = _START_SECONDS + size / _BYTES_A_SECOND
        deadline = time.monotonic() + seconds
        while self._thread.is_alive():
            self._thread.join(_TELL_SECONDS)
            alive()
            if time.monotonic() > deadline:
                self.stop()
                raise CheckpointError(
                    f"llamacpp engine: expected to read {size} bytes of the cache again in "
                    f"{seconds:.0f} s, got no end; look for a disk that fails",
                    reason="slice_check",
                    operation="check stage file",
                )
        return list(self._damaged)

    def remove(self, path: Path) -> None:
        """Delete a file that held other bytes, unless another process has replaced it meanwhile."""
        with contextlib.suppress(OSError):
            if _identity(path.stat()) == self._damaged[path]:
                path.unlink()

    def stop(self) -> None:
        """Compare no more; what was found stays."""
        self._over.set()

    def _compare(self) -> None:
        for path, spans in self._files.items():
            # One that was deleted meanwhile is not there to be wrong.
            with contextlib.suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
                if not self._is_equal(file.fileno(), spans, read_sums(path, len(spans))):
                    self._damaged[path] = _identity(os.fstat(file.fileno()))

    def _is_equal(self, descriptor: int, spans: Spans, sums: tuple[int, ...] | None) -> bool:
        piece = memoryview(bytearray(_PIECE_BYTES))
        try:
            return sums is not None and all(
                self._over.is_set() or _sum(descriptor, span, piece) == told
                for span, told in zip(spans, sums, strict=True)
            )
        except OSError:
            return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _sum(descriptor: int, span: tuple[int, int], piece: memoryview) -> int:
    """Return the CRC-32 of a span of a file; of what is there of it, where the file is shorter."""
    begin, left = span
    found = 0
    while left:
        got = os.preadv(descriptor, [piece[: min(left, len(piece))]], begin)
        if not got:
            break
        found = zlib.crc32(piece[:got], found)
        begin, left = begin + got, left - got
    return found
