"""What is not needed any more goes back to the system; measured in processes of their own."""

from __future__ import annotations

import mmap
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from stagelink.engine.freed_memory import let_code_go

if TYPE_CHECKING:
    from pathlib import Path

# Pieces too large for Python's own allocator; the last one, held, is above all the others.
_PROCESS = """
import os
from stagelink.engine.freed_memory import give_back

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

pieces = [bytes(600) for _ in range(100_000)]
last = pieces.pop()
before = resident()
pieces.clear()
give_back()
print(before - resident())
"""


# Two pages of a file as code: of one mapping they are as the file has them, of the other written.
_CODE = """
import ctypes, mmap, sys
from stagelink.engine.freed_memory import let_code_go

def resident(address):
    held = False
    for line in open("/proc/self/smaps"):
        if "-" in line.split()[0]:
            held = line.startswith(f"{address:x}-")
        elif held and line.startswith("Rss:"):
            return int(line.split()[1])

size = mmap.PAGESIZE
mapped = []
with open(sys.argv[1], "r+b") as file:
    for byte in (b"", b"x"):
        one = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        one[: len(byte)] = byte
        one[:8]
        address = ctypes.addressof(ctypes.c_char.from_buffer(one))
        protect = ctypes.CDLL(None).mprotect
        protect(ctypes.c_void_p(address), size, mmap.PROT_READ | mmap.PROT_EXEC)
        mapped.append((one, address))
before = [resident(address) for _, address in mapped]
let_code_go()
print(*before, *(resident(address) for _, address in mapped))
print(*(one[:1].decode() for one, _ in mapped))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_what_lies_under_a_piece_in_use_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS], capture_output=True, check=True, text=True, timeout=60
    )
    assert int(done.stdout) > 40 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_code_is_mapped_again_from_its_file_and_a_written_page_of_it_is_kept(
    tmp_path: Path,
) -> None:
    path = tmp_path / "code"
    path.write_bytes(b"a" * (1 << 16))
    done = subprocess.run(
        [sys.executable, "-c", _CODE, path], capture_output=True, check=True, text=True, timeout=60
    )
    page = mmap.PAGESIZE // 1024
    numbers, kept = done.stdout.splitlines()
    assert numbers.split() == [str(kib) for kib in (page, page, 0, page)]
    assert kept == "a x"


@pytest.mark.parametrize("key", ["Anonymous", "Swap", "Private_Hugetlb"])
def test_code_of_which_a_page_was_written_is_left_wherever_that_page_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    text = "".join(
        f"{begin:x}-{begin + 4096:x} {mode} 00000000 fe:00 7 {path}\n"
        f"Rss: 4 kB\nAnonymous: 0 kB\nPrivate_Hugetlb: 0 kB\nSwap: 0 kB\nVmFlags: rd ex\n"
        for begin, mode, path in ((4096, "r-xp", "/a"), (8192, "r-xp", "/b"), (16384, "rw-p", "/b"))
    )
    table = tmp_path / "smaps"
    table.write_text(text)
    let_go: list[tuple[int, int, int]] = []
    monkeypatch.setattr("stagelink.engine.memory_map.SMAPS", table)
    monkeypatch.setattr(
        "stagelink.engine.freed_memory.memory_advice", lambda: lambda *asked: let_go.append(asked)
    )
    let_code_go()
    assert let_go == [(4096, 4096, 4), (8192, 4096, 4)]
    let_go.clear()
    table.write_text(text.replace(f"{key}: 0 kB", f"{key}: 4 kB", 1))
    let_code_go()
    assert let_go == [(8192, 4096, 4)]
