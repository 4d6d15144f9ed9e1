"""The GGUF file of one layer range, and that of the head: what is in them, and the cached copy.

It decides by the architecture's rule and copies stored bytes; it dequantizes and loads nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelink.engine import CheckpointError, ConfigError, locked, private_folder
from stagelink_llamacpp.gguf_bytes import Entry, aligned, encode_head, offsets_of
from stagelink_llamacpp.sums import encode_sums, is_there, read_sums, sums_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stagelink.engine import GgufSource
    from stagelink_llamacpp.head_rules import HeadFile
    from stagelink_llamacpp.rules import Rule
    from stagelink_llamacpp.sums import Identity, Spans

# Goes up when a file of the same source and range would hold other bytes.
VERSION = 1
EMBED, HEAD, NORM = "token_embd.weight", "output.weight", "output_norm.weight"
_F32, _F16 = (0, 4), (1, 2)
_PIECE_BYTES = 1 << 20
_LOCK_SECONDS, _WAIT_SECONDS = 3600.0, 1.0
_LOCK_REASON = "lock_deadline"
_SPARE_BYTES = 64 << 20
_ZERO_BYTES_MAX = 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class StageFile:
    """A file to be: its head, and for each tensor of the table the source's name or zeros.

    Attributes:
        head: Bytes before the tensor data.
        entries: The tensor table.
        sources: Name in the source of each entry, ``None`` for zeros.
    """

    head: bytes
    entries: tuple[Entry, ...]
    sources: tuple[str | None, ...]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        begin = offsets_of(self.entries)[-1]
        return len(self.head) + aligned(begin + self.entries[-1].nbytes)

    @property
    def source_bytes(self) -> int:
        """Bytes that come from the source."""
        named = zip(self.entries, self.sources, strict=True)
        return sum(entry.nbytes for entry, source in named if source is not None)

    @property
    def spans(self) -> Spans:
        """First byte and bytes of each tensor's data, in order."""
        begins = (len(self.head) + begin for begin in offsets_of(self.entries))
        return tuple((begin, one.nbytes) for begin, one in zip(begins, self.entries, strict=True))

    def offset(self, name: str) -> int:
        """Return where the data of tensor ``name`` begins in the file."""
        return self.span(name)[0]

    def span(self, name: str) -> tuple[int, int]:
        """Return where the data of tensor ``name`` begins in the file, and its bytes."""
        return self.spans[[entry.name for entry in self.entries].index(name)]


def range_file(source: GgufSource, rule: Rule, first: int, end: int) -> StageFile:
    """Lay out the file of layers ``first..end``: those layers renumbered, and no vocabulary."""
    names = {name: rule.tensor_name(name, first, end) for name in source.tensors}
    renamed = {name: new for name, new in names.items() if new is not None}
    return _laid_out(source, rule.metadata_for(first, end), rule.zeros, renamed)


def head_file(source: GgufSource, rule: HeadFile) -> StageFile:
    """Lay out the head's file: final norm, vocabulary, and one layer of zeros before them.

    A layer whose matrices are zero leaves the residual as it is, so the rows that it is handed are
    normed and multiplied, and nothing else. Its matrices are halves: they stay in memory.
    """
    return _laid_out(source, rule.values, rule.zeros, rule.renamed, _F16)


def embed_file(source: GgufSource) -> StageFile:
    """Lay out a file with the embedding alone, where the head's file has another vocabulary."""
    return _laid_out(source, {"general.architecture": "none"}, {}, {EMBED: EMBED})


def _laid_out(
    source: GgufSource,
    values: Mapping[str, Any],
    zeros: Mapping[str, tuple[int, ...]],
    renamed: Mapping[str, str],
    zero_kind: tuple[int, int] = _F32,
) -> StageFile:
    """Lay out a file; ``zero_kind`` is type and bytes of a value of a matrix of zeros."""
    own = [source.tensors[name] for name in renamed]
    copied = [
        Entry(new, one.kind, one.shape, one.nbytes)
        for new, one in zip(renamed.values(), own, strict=True)
    ]
    kinds = {name: zero_kind if len(shape) > 1 else _F32 for name, shape in zeros.items()}
    blank = [
        Entry(name, kind, zeros[name], math.prod(zeros[name]) * each)
        for name, (kind, each) in kinds.items()
    ]
    zero_bytes = sum(one.nbytes for one in blank)
    if zero_bytes > _ZERO_BYTES_MAX:
        raise CheckpointError(
            f"llamacpp engine: expected at most {_ZERO_BYTES_MAX} bytes of zeros in a stage's "
            f"file, got {zero_bytes} by the checkpoint's embedding_length; fetch it again",
            reason="gguf_metadata",
            operation="slice checkpoint",
        )
    entries = (*blank, *copied)
    head = encode_head(values, source.kinds, entries)
    return StageFile(head, entries, (*(None for _ in zeros), *renamed))


def cached(
    stage: StageFile, source: GgufSource, key: str, progress: Callable[[int], None] | None = None
) -> Path:
    """Return the path of ``stage`` as a file in the user's cache; it is written where it is absent.

    Args:
        stage: What is in it.
        source: Where its tensors come from.
        key: What no other file shares: digest of the source, and the range.
        progress: Called with the bytes of the source copied so far.

    Raises:
        ConfigError: ``cache_folder``.
        CheckpointError: ``disk_room``, ``lock_deadline`` where another process does not finish, or
            what reading the source raises.
    """
    path = private_folder("slices", needed=True) / f"{key}-{VERSION}.gguf"
    if not is_whole(stage, path):
        try:
            if _made(stage, source, path, progress):
                return path
        except OSError as error:
            got = error.strerror or str(error)
            raise ConfigError(
                f"{path.parent}: expected a cache folder that can be written, got {got}; set "
                "STAGELINK_CACHE to a folder of yours",
                reason="cache_folder",
            ) from None
    source.note_read(stage.source_bytes)
    return path


def _made(
    stage: StageFile, source: GgufSource, path: Path, progress: Callable[[int], None] | None
) -> bool:
    """Write the file unless another process has done so meanwhile; say whether it was written."""
    with _locked(_lock_path(path), progress):
        # Who holds the lock is the only one that writes for this key: others are dead.
        for stale in path.parent.glob(f"{path.name}.tmp-*"):
            stale.unlink(missing_ok=True)
        if is_whole(stage, path):
            return False
        _write(stage, source, path, progress)
        return True


def remove(path: Path, own: Identity, progress: Callable[[int], None] | None = None) -> None:
    """Delete a file of the cache, unless another one lies under its name by now.

    Raises:
        CheckpointError: ``lock_deadline`` where another process does not finish.
    """
    # Who makes a file puts it there under the same lock.
    with contextlib.suppress(OSError), _locked(_lock_path(path), progress):
        if is_there(path, own):
            path.unlink()


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


@contextlib.contextmanager
def _locked(path: Path, progress: Callable[[int], None] | None) -> Iterator[None]:
    """Hold the lock file; while another process has it, say every second that this one lives."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(path, _WAIT_SECONDS, lambda: None))
                break
            except Exception as error:
                if getattr(error, "reason", None) != _LOCK_REASON:
                    raise
            if progress is not None:
                progress(0)
            if time.monotonic() >= deadline:
                raise CheckpointError(
                    f"{path}: expected another process to finish within {_LOCK_SECONDS:.0f} s, got "
                    "no end; look for a stuck stagelink",
                    reason=_LOCK_REASON,
                    operation="slice checkpoint",
                )
        yield


def is_whole(stage: StageFile, path: Path) -> bool:
    """Say whether the file at ``path`` has its size, its head, and checksums of the rest."""
    try:
        with path.open("rb") as file:
            return (
                os.fstat(file.fileno()).st_size == stage.size
                and file.read(len(stage.head)) == stage.head
                and read_sums(path, len(stage.entries)) is not None
            )
    except OSError:
        return False


def _write(
    stage: StageFile, source: GgufSource, path: Path, progress: Callable[[int], None] | None
) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < stage.size + _SPARE_BYTES:
        raise _no_room(path.parent, f"{stage.size + _SPARE_BYTES} bytes free", str(free))
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.tmp-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(stage.head)
            sums = _write_data(stage, source, out, progress)
            out.truncate(stage.size)
            out.flush()
            os.fsync(out.fileno())
        # Beside a file that is not theirs they would only have it cut anew.
        _write_whole(sums_path(path), encode_sums(sums), f"{path.name}.tmp-")
        # Another file under this name may have been tried: the mark was for that one.
        for mark in path.parent.glob(f"{path.name}.tried-*"):
            mark.unlink(missing_ok=True)
        temporary.replace(path)
    except OSError as error:
        got = error.strerror or str(error)
        raise _no_room(path.parent, f"to write {stage.size} bytes", got) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _write_whole(path: Path, data: bytes, prefix: str) -> None:
    """Put a file under its name at once: who reads it now has the old one, or the new one."""
    descriptor, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
        Path(name).replace(path)
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _write_data(
    stage: StageFile, source: GgufSource, out: Any, progress: Callable[[int], None] | None
) -> list[int]:
    """Write the tensors' data; return the CRC-32 of each."""
    piece = memoryview(bytearray(_PIECE_BYTES))
    done = 0
    sums = []
    for (begin, nbytes), name in zip(stage.spans, stage.sources, strict=True):
        found = 0
        out.seek(begin)
        for offset in range(0, nbytes, _PIECE_BYTES):
            view = piece[: min(_PIECE_BYTES, nbytes - offset)]
            if name is None:
                # What is never written reads as zeros, and takes no room on most disks.
                found = zlib.crc32(bytes(len(view)), found)
                continue
            source.read_into(name, view, offset)
            found = zlib.crc32(view, found)
            out.write(view)
            done += len(view)
            if progress is not None:
                progress(done)
        sums.append(found)
    return sums


def _no_room(folder: Path, expected: str, got: str) -> CheckpointError:
    text = (
        f"{folder}: expected {expected}, got {got}; free some room, or set STAGELINK_CACHE to "
        "another folder"
    )
    return CheckpointError(text, reason="disk_room", operation="slice checkpoint")
