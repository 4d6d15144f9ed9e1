"""The memory of this process as Linux tells of it, and its advice about that.

It decides nothing; what is advised is freed_memory.py's business, or an engine's.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAPS, SMAPS = Path("/proc/self/maps"), Path("/proc/self/smaps")
STATM = Path("/proc/self/statm")
# MADV_DONTNEED of include/uapi/asm-generic/mman-common.h.
DONT_NEED = 4
# smaps has this one last of each mapping.
_LAST = "VmFlags:"


class Mapping(NamedTuple):
    """One mapping, as proc_pid_maps(5) has it: addresses ``begin..end``."""

    begin: int
    end: int
    rights: str
    offset: int
    path: str

    @classmethod
    def of(cls, line: str) -> Mapping:
        """Read a line of maps, or the first one that smaps has of a mapping."""
        span, rights, offset, _, _, *path = line.rstrip("\n").split(maxsplit=5)
        begin, end = (int(one, 16) for one in span.split("-"))
        return cls(begin, end, rights, int(offset, 16), path[0] if path else "")


def mappings() -> Iterator[Mapping]:
    """Yield each mapping by address; nothing where the system does not say."""
    with contextlib.suppress(OSError, ValueError), _opened(MAPS) as lines:
        yield from map(Mapping.of, lines)


def mappings_without(counts: Sequence[str]) -> Iterator[Mapping]:
    """Yield each mapping of which smaps, proc_pid_smaps(5), has 0 for all of ``counts``."""
    with contextlib.suppress(OSError, ValueError), _opened(SMAPS) as lines:
        for line in lines:
            key, _, rest = line.partition(" ")
            if not key.endswith(":"):
                mapping, is_without = Mapping.of(line), True
            elif key[:-1] in counts:
                is_without &= rest.split()[0] == "0"
            elif key == _LAST and is_without:
                yield mapping


def resident_bytes() -> int | None:
    """Return the bytes of the process that are in memory, if the system says."""
    try:
        return _resident()[0]
    except (OSError, ValueError):
        return None


def written_bytes() -> int:
    """Return those of them that no file has.

    Raises:
        OSError: The system does not say.
    """
    resident, of_files = _resident()
    return resident - of_files


def memory_advice() -> Callable[[int, int, int], int]:
    """Return madvise(2) of (address, bytes, advice); ``AttributeError`` where there is none."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise


def _resident() -> tuple[int, int]:
    """Return resident bytes, and how many of them are of files: proc_pid_statm(5)."""
    with STATM.open(encoding="ascii") as file:
        resident, of_files = file.read().split()[1:3]
    return int(resident) * mmap.PAGESIZE, int(of_files) * mmap.PAGESIZE


def _opened(path: Path) -> contextlib.AbstractContextManager[Iterator[str]]:
    return path.open(encoding="utf-8", errors="surrogateescape")
