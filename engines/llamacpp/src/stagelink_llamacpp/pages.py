"""Tells the system how a model's memory is used: in huge pages, or not at all.

It changes no byte, and does nothing where the system has no such advice. A decode step reads every
weight once, so what it waits for besides the memory is the look-up of its pages: of 92 MiB of
SmolLM2 in pages of 4 KiB, a step took 4 to 5 % longer than in pages of 2 MiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAPS = "/proc/self/maps"
# Linux's advice: include/uapi/asm-generic/mman-common.h. `_COLLAPSE` is of Linux 6.1.
_DROP, _HUGE, _COLLAPSE = 4, 14, 25
_HUGE_BYTES = 2 << 20
# Smaller ones are not the weights of a layer.
_SPAN_BYTES_MIN = 2 * _HUGE_BYTES
_TELL_BYTES = 256 << 20
# glibc's mallopt(3). Without them the first large block that is freed raises both limits up to 32
# and 64 MiB: blocks up to there are then made on the heap, and what is free below its top stays.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 4 << 20, 1 << 20

Spans = list[tuple[int, int]]


def return_large_blocks() -> None:
    """Have large blocks that are freed from now on go back to the system at once.

    Nothing happens where the C library is another than glibc.
    """
    with contextlib.suppress(AttributeError, OSError):
        adjust = ctypes.CDLL(None).mallopt
        adjust(_MMAP_THRESHOLD, _MMAP_BYTES)
        adjust(_TRIM_THRESHOLD, _TRIM_BYTES)


def private_spans() -> Spans:
    """Return (begin, end) of the process's own writable memory, by address; nothing elsewhere."""
    found: Spans = []
    for begin, end, rights, path in _mappings():
        if rights == "rw-p" and path in ("", "[heap]"):
            if found and found[-1][1] == begin:
                found[-1] = found[-1][0], end
            else:
                found.append((begin, end))
    return found


def collapse_new(before: Spans, tell: Callable[[], object]) -> int:
    """Put memory that came since ``before``, and is in use, into huge pages; return its bytes.

    Every page of it must have been written: one that was not would be made. ``tell`` is called now
    and then.
    """
    done = since = 0
    with contextlib.suppress(AttributeError, OSError):
        advise = _advise()
        for first, last in _without(private_spans(), before):
            begin, end = -(-first // _HUGE_BYTES) * _HUGE_BYTES, last // _HUGE_BYTES * _HUGE_BYTES
            if end - begin < _SPAN_BYTES_MIN or advise(begin, end - begin, _HUGE):
                continue
            for at in range(begin, end, _HUGE_BYTES):
                if advise(at, _HUGE_BYTES, _COLLAPSE) == 0:
                    done += _HUGE_BYTES
                elif ctypes.get_errno() in (errno.ENOMEM, errno.ENOSYS):
                    # No free huge page is left: looking for more would only cost time.
                    return done
                since += _HUGE_BYTES
                if since >= _TELL_BYTES:
                    since = 0
                    tell()
    return done


def drop_pages(path: Path) -> None:
    """Drop the resident pages of a file that is mapped to be read; nothing where none is told."""
    with contextlib.suppress(AttributeError, OSError):
        advise = _advise()
        wanted = str(path.resolve())
        for begin, end, rights, mapped in _mappings():
            # A page that the process could have written to must not be lost.
            if rights.startswith("r--") and wanted in mapped:
                advise(begin, end - begin, _DROP)


def _mappings() -> Iterator[tuple[int, int, str, str]]:
    """Yield begin, end, rights and path of the process's mappings, as proc_pid_maps(5) has them."""
    with (
        contextlib.suppress(OSError, ValueError),
        Path(_MAPS).open(encoding="utf-8", errors="surrogateescape") as maps,
    ):
        for line in maps:
            span, rights, _, _, _, *path = line.rstrip("\n").split(maxsplit=5)
            begin, end = (int(one, 16) for one in span.split("-"))
            yield begin, end, rights, path[0] if path else ""


def _without(spans: Spans, others: Spans) -> Iterator[tuple[int, int]]:
    """Yield the parts of spans that lie in none of the others; both are in order."""
    for first, end in spans:
        begin = first
        for other_begin, other_end in others:
            if other_end <= begin or other_begin >= end:
                continue
            if begin < other_begin:
                yield begin, other_begin
            begin = min(other_end, end)
        if begin < end:
            yield begin, end


def _advise() -> Callable[[int, int, int], int]:
    """Return madvise(2); ``AttributeError`` where the system has none."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return advise
