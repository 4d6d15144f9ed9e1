"""A decode ring of two processes for a given number of rounds: every row back as it was sent, and
memory as it was.

It measures and reports; what is too much is said by who calls it (`scripts/soak.py`, a test).
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.adversary.strangers import descriptors, memory_kib
from tests.faults.ring_of_stubs import SCRIPT, SETTINGS
from tests.faults.stub_rank import FIELDS, ROW_BYTES, description

from stagelink import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What is allocated once on the way there: before it nothing is compared.
WARM_SHARE = 0.1
LOOKS = 20
# Looks of which not each meets a descriptor that is open for a moment.
_FEW = 3


@dataclasses.dataclass(frozen=True)
class Look:
    """Both processes at one moment: resident memory in KiB, and open descriptors."""

    rounds: int
    kib: tuple[int, int]
    open: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Soaked:
    """What a run came to; ``looks`` begin after the warm-up."""

    rounds: int
    seconds: float
    wrong: int
    looks: list[Look]

    @property
    def grown_kib(self) -> int:
        """The most that either process grew from the first look on."""
        mine, theirs = self.looks[0].kib
        return max(max(look.kib[0] - mine, look.kib[1] - theirs) for look in self.looks)

    @property
    def is_open_flat(self) -> bool:
        """No descriptor stays or goes.

        A look may meet one that another thread has just opened, such as a file of /proc; one that
        was left behind is there in the last ones too.
        """
        early, late = self.looks[:_FEW], self.looks[-_FEW:]
        return all(
            min(look.open[at] for look in early) == min(look.open[at] for look in late)
            for at in range(2)
        )


def soak(
    rounds: int,
    key_file: Path,
    note: Callable[[Look], None] | None = None,
    suite: str = "psk",
) -> Soaked:
    """Run so many decode rounds of one row of 20 KiB; rank 0 is this process."""
    listener = _native.Listener("127.0.0.1:0")
    told = {**SETTINGS, "rank": 1, "world": 2, "key_file": str(key_file), "compute": 0.0}
    told |= {"interval": 2.0, "suite": suite}
    follower = subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert follower.stdin is not None
        follower.stdin.write(f"{listener.address}\n".encode())
        follower.stdin.flush()
        ring = _join(listener, key_file, suite)
        done = _rounds(ring, rounds, follower.pid, note)
        ring.close()
        assert follower.wait(10) == 0
        return done
    finally:
        follower.kill()
        follower.wait(10)
        assert follower.stdin is not None
        follower.stdin.close()


def _join(listener: _native.Listener, key_file: Path, suite: str) -> _native.Ring:
    ring = _native.Ring.join(
        listener=listener,
        lead=None,
        key_file=str(key_file),
        launch_id=None,
        fields=FIELDS,
        description=description(0, 2),
        suite=suite,
    )
    ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=30)
    return ring


def _rounds(
    ring: _native.Ring, rounds: int, other: int, note: Callable[[Look], None] | None
) -> Soaked:
    sent, back = _native.RowsBuffer(ROW_BYTES), _native.RowsBuffer(ROW_BYTES)
    out, got = memoryview(sent), memoryview(back)
    out[:] = os.urandom(ROW_BYTES)
    looks: list[Look] = []
    wrong = 0
    warm, step = int(rounds * WARM_SHARE), max(1, rounds // LOOKS)
    began = time.monotonic()
    for count in range(rounds):
        out[:8] = count.to_bytes(8, "little")
        number = ring.send_plan(_plan(count))
        ring.exchange(number, sent, back)
        wrong += got != out
        if count >= warm and (count % step == 0 or count == rounds - 1):
            looks.append(_look(count, other))
            if note is not None:
                note(looks[-1])
    return Soaked(rounds, time.monotonic() - began, wrong, looks)


def _look(count: int, other: int) -> Look:
    both = (os.getpid(), other)
    mine, theirs = (memory_kib(pid) for pid in both)
    own, its = (descriptors(pid) for pid in both)
    return Look(count, (mine, theirs), (own, its))


def _plan(count: int) -> _native.Plan:
    """One row of the one stream."""
    return _native.Plan(
        ids=[1],
        ops=[2 if count else 1],
        firsts=[count],
        rows=[1],
        accepted=[1 if count else 0],
        generations=[0],
        returns=[1],
    )
