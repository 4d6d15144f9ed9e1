"""A ring of stub ranks in processes of their own, with fault proxies on any of its links.

It starts, listens and ends; which fault is put where, and what must be named, say the cases.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults.stub_rank import TEXTS
from tests.support.fault_proxy import FaultProxy
from tests.support.second_reader.wire import crc32c

if TYPE_CHECKING:
    import signal
    from types import TracebackType
    from typing import Self

SCRIPT = Path(__file__).with_name("stub_rank.py")
SETTINGS: dict[str, Any] = {
    "phase": "decode",
    "suite": "psk",
    "listen": "127.0.0.1:0",
    "interval": 0.2,
    "compute": 0.005,
    "rows": 1,
    "ahead": 1,
    "posted": False,
    "rounds": -1,
    "busy": 60.0,
    "join_seconds": 30.0,
}
# Nothing waits longer for a line; a test that gets here failed.
LINE_SECONDS = 40.0
# Where a description lies in the follower's stream of a control link: after hello and proof.
DESCRIBE_AT = 160 + 64
HEADER_BYTES = 32
PORT_AT = 96


class Rank:
    """One process, and the lines that it writes."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.rank: int = told["rank"]
        # What puts it on another host; the process that it becomes has the same id.
        within = told.pop("within", ())
        self.process = subprocess.Popen(
            [*within, sys.executable, str(SCRIPT), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def next(self, event: str, seconds: float = LINE_SECONDS) -> dict[str, Any]:
        """The next line, which must be of this event."""
        told: dict[str, Any] = json.loads(self._line(time.monotonic() + seconds))
        assert told["event"] == event, (self.rank, told)
        return told

    def tell(self, line: str) -> None:
        """Write one line to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        os.kill(self.pid, number)

    def until_asleep(self) -> None:
        """Wait until the process neither runs nor used the processor between two looks."""
        stat = Path(f"/proc/{self.pid}/task/{self.pid}/stat")
        ends_at = time.monotonic() + 10
        seen: list[str] = []
        while time.monotonic() < ends_at:
            fields = stat.read_text(encoding="ascii").rpartition(")")[2].split()
            state, used = fields[0], fields[11] + " " + fields[12]
            # Ticks of ten milliseconds: five looks of twenty are past any start-up.
            seen = [*seen, used] if state == "S" and used in seen[-1:] else [used]
            if len(seen) == 5:
                return
            time.sleep(0.02)
        raise AssertionError(f"rank {self.rank} never rests")

    def end(self) -> None:
        """End it whatever it does, and take its exit."""
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _line(self, ends_at: float) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                ready = selector.select(max(0.0, ends_at - time.monotonic()))
                assert ready, f"rank {self.rank} said nothing in time"
                piece = os.read(self.process.stdout.fileno(), 4096)
                assert piece, f"rank {self.rank} ended without a word"
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line


class StubRing:
    """All ranks of a ring; leaving the block ends every process that it started.

    Args:
        key_file: The ring's key.
        world: Stages.
        control: Ranks whose control link goes through a proxy of its own.
        boundary: Ranks r whose link from rank r - 1 goes through a proxy of its own.
        absent: Ranks that are not started until ``add`` does it.
        **settings: Over `SETTINGS`; ``of_rank`` has more for single ranks.
    """

    def __init__(
        self,
        key_file: str,
        *,
        world: int = 3,
        control: tuple[int, ...] = (),
        boundary: tuple[int, ...] = (),
        absent: tuple[int, ...] = (),
        **settings: Any,
    ) -> None:
        own: dict[int, dict[str, Any]] = settings.pop("of_rank", {})
        every = {**SETTINGS, **settings, "key_file": key_file, "world": world}
        self.interval: float = every["interval"]
        self.world = world
        self.control: dict[int, FaultProxy] = {}
        self.boundary: dict[int, FaultProxy] = {}
        self.ranks: dict[int, Rank] = {}
        # Where the ranks are on hosts of their own (tests/hosts): those hosts.
        self.hosts: Any = None
        self._told = {number: {**every, **own.get(number, {})} for number in range(world)}
        self._stack = contextlib.ExitStack()
        try:
            self._start(set(absent), (control, boundary))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self) -> Self:
        """Wait until every rank is in its phase."""
        for rank in self.ranks.values():
            rank.next("joined")
        for rank in self.ranks.values():
            rank.next("running")
        return self

    def add(self, number: int) -> Rank:
        """Start a rank that was absent."""
        one = self._spawn(number)
        one.next("listening")
        one.tell(self.address)
        return one

    def send(self, rank: int, number: signal.Signals) -> float:
        """Send a signal to one rank; returns when."""
        sent = time.monotonic()
        self.ranks[rank].send(number)
        return sent

    def errors(self, without: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        """The error of every rank, in rank order, but for those that cannot say one."""
        return [one.next("error") for rank, one in self.ranks.items() if rank not in without]

    @property
    def address(self) -> str:
        """Where rank 0 listens."""
        return self.addresses[0]

    def _spawn(self, number: int) -> Rank:
        one = self.ranks[number] = Rank({**self._told[number], "rank": number})
        self._stack.callback(one.end)
        return one

    def _start(self, absent: set[int], proxied: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        for number in sorted(set(range(self.world)) - absent):
            self._spawn(number)
        control, boundary = proxied
        listening = {n: one.next("listening")["address"] for n, one in self.ranks.items()}
        self.addresses: dict[int, str] = listening
        for number, one in self.ranks.items():
            if number == 0:
                continue
            lead = self.address
            if number in control or number in boundary:
                proxy = self.control[number] = self._proxy(lead)
                lead = proxy.address
            if number in boundary:
                self._put_between(number, self.addresses[number])
            one.tell(lead)

    def _proxy(self, target: str) -> FaultProxy:
        return self._stack.enter_context(FaultProxy(target, seed=1))

    def _put_between(self, rank: int, address: str) -> None:
        """Put a proxy before a rank's own address.

        Its neighbour dials the address of the roster, which is that of the rank's description; so
        the port there is changed on the way, and both checksums with it. A CRC is linear: what it
        changes by depends on the change alone, not on the frame.
        """
        proxy = self.boundary[rank] = self._proxy(address)
        texts = (*TEXTS, f"host{rank}", address.rpartition(":")[0])
        payload = bytearray(136 + sum(1 + len(text) for text in texts))
        port = int(address.rpartition(":")[2]) ^ proxy.port
        payload[PORT_AT : PORT_AT + 2] = port.to_bytes(2, "little")
        header = bytearray(HEADER_BYTES)
        header[24:28] = _crc_change(payload).to_bytes(4, "little")
        header[28:32] = _crc_change(header[:28]).to_bytes(4, "little")
        for at, mask in enumerate(bytes(header + payload)):
            if mask:
                self.control[rank].command(f"flip up {DESCRIBE_AT + at} {mask} @0")


def _crc_change(change: bytes | bytearray) -> int:
    """What exclusive-or with ``change`` does to a CRC-32C."""
    return crc32c(bytes(change)) ^ crc32c(bytes(len(change)))
