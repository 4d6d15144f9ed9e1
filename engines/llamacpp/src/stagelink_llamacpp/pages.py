"""Tells the system how a model's memory is used: in huge pages, or not at all.

It changes no byte, and does nothing where the system has no such advice. A decode step reads every
weight once, so what it waits for besides the memory is the look-up of its pages: of 92 MiB of
SmolLM2 in pages of 4 KiB, a step took 4 to 5 % longer than in pages of 2 MiB.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import threading
from typing import TYPE_CHECKING

from stagelink.engine import DONT_NEED, mappings, memory_advice, written_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Linux's advice: include/uapi/asm-generic/mman-common.h. `_PAGE_OUT` is of Linux 5.4, `_COLLAPSE`
# of 6.1.
_HUGE, _PAGE_OUT, _COLLAPSE = 14, 21, 25
_HUGE_BYTES = 2 << 20
# Smaller ones are not the weights of a layer.
_SPAN_BYTES_MIN = 2 * _HUGE_BYTES
# llama.cpp reads some ten MiB in that time.
_DROP_SECONDS = 0.005
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
    for begin, end, rights, _, path in mappings():
        if rights == "rw-p" and path in ("", "[heap]"):
            if found and found[-1][1] == begin:
                found[-1] = found[-1][0], end
            else:
                found.append((begin, end))
    return found


class Collapsing:
    """Puts memory that came since ``before``, and is in use, into huge pages, in a thread.

    Looking for huge pages takes the system up to 4 ms each, which a stage's start does not wait
    for; the bytes stay where they are and may be used meanwhile. Every page must have been written:
    one that was not would be made. Nothing may be freed before ``stop``.

    Attributes:
        collapsed_bytes: What is in huge pages so far.
    """

    def __init__(self, before: Spans) -> None:
        """Begin; which memory is meant is decided now."""
        self.collapsed_bytes = 0
        self._spans = list(_without(private_spans(), before))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._collapse, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until all is done, which lasts as long as the system looks for huge pages."""
        self._thread.join()

    def stop(self) -> None:
        """Leave the rest in small pages; a second call does nothing."""
        self._over.set()
        self._thread.join()

    def _collapse(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            advise = memory_advice()
            for first, last in self._spans:
                begin = -(-first // _HUGE_BYTES) * _HUGE_BYTES
                end = last // _HUGE_BYTES * _HUGE_BYTES
                if end - begin < _SPAN_BYTES_MIN or advise(begin, end - begin, _HUGE):
                    continue
                for at in range(begin, end, _HUGE_BYTES):
                    if self._over.is_set():
                        return
                    if advise(at, _HUGE_BYTES, _COLLAPSE) == 0:
                        self.collapsed_bytes += _HUGE_BYTES
                    elif ctypes.get_errno() in (errno.ENOMEM, errno.ENOSYS):
                        # No free huge page is left: looking for more would only cost time.
                        return


class Dropping:
    """Drops the resident pages of a part of a mapped file behind who copies it into new memory.

    How far that one is shows in the memory that the process has written. Until the copy has
    ``spare`` bytes nothing is dropped: what is loaded later needs that much. llama.cpp unmaps parts
    of the file before it says that it has loaded it, and all of it where it fails, and what is
    mapped there by then is advised too: so pages are written back or out meanwhile, and no byte is
    lost. Nothing happens where the system refuses that, as Linux does for another user's file.
    """

    def __init__(self, path: Path, begin: int, size: int, spare: int = 0) -> None:
        """Prepare for the bytes from ``begin`` on of the file at ``path``; nothing is dropped."""
        self._path, self._begin, self._size, self._spare = path, begin, size, spare
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Drop from now on; nothing happens where it goes on already, or no part is mapped."""
        if self._thread is not None or self._over.is_set():
            return
        with contextlib.suppress(AttributeError, OSError):
            advise, spans = memory_advice(), self._spans(self._begin, self._size)
            self._thread = threading.Thread(
                target=self._drop, args=(advise, spans, written_bytes()), daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Drop what is still mapped of the file, and then no more; a second call does nothing.

        The caller is who would unmap it, and so what is mapped now is so while this runs: the
        system may keep its pages for the next start.
        """
        if self._over.is_set():
            return
        self._over.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        with contextlib.suppress(AttributeError, OSError):
            advise = memory_advice()
            for begin, end in self._spans(0, self._begin + self._size):
                advise(begin, end - begin, DONT_NEED)

    def _drop(self, advise: Callable[[int, int, int], int], spans: Spans, before: int) -> None:
        done = 0
        while not self._over.wait(_DROP_SECONDS):
            copied = written_bytes() - before - self._spare
            at = 0
            for begin, end in spans:
                first, last = max(begin, begin + done - at), min(end, begin + copied - at)
                last -= last % mmap.PAGESIZE
                if first < last:
                    advise(first, last - first, _PAGE_OUT)
                at += end - begin
            done = max(done, copied - copied % mmap.PAGESIZE)

    def _spans(self, begin: int, size: int) -> Spans:
        """Return the addresses of a part's whole pages where it is mapped to be read."""
        wanted = str(self._path.resolve())
        page = mmap.PAGESIZE
        found: Spans = []
        for start, end, rights, offset, mapped in mappings():
            # A page that the process could have written to must not be lost.
            if rights.startswith("r--") and mapped == wanted:
                first = start + max(0, -(-(begin - offset) // page) * page)
                last = min(end, start + (begin + size - offset) // page * page)
                if first < last:
                    found.append((first, last))
        return found


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
