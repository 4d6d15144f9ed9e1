"""What somebody without the key, or with an old word of a holder, can send; and what came back.

It asserts nothing. Every connection has a deadline, and everything that a stranger got is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import secrets
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.faults.stub_rank import FIELDS
from tests.support.second_reader.handshake import (
    ACCEPTOR,
    CONNECTOR,
    CONTROL,
    RING,
    ZEROS,
    Connector,
    End,
    Identity,
)
from tests.support.second_reader.wire import crc32c, make_frame

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = bytes(range(32))
NO_KEY = bytes(32)
# The whole handshake of one connection may take five seconds (docs/protocol.md 8).
PATIENCE = 8.0
FINGERPRINT = hashlib.sha256(b"stagelink/v1 fingerprint\0" + b"".join(FIELDS)).digest()

Address = tuple[str, int]


def address_of(text: str) -> Address:
    """`host:port` as the socket module has it."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def identity(rank: int, peer_rank: int, world: int, *, link: int, launch: bytes) -> Identity:
    """What a rank of the stub ring would say of itself; no secret is in it."""
    return Identity(
        rank=rank,
        peer_rank=peer_rank,
        world=world,
        link=link,
        launch_id=launch,
        fingerprint=FINGERPRINT,
    )


def connector(key: bytes, who: Identity) -> Connector:
    """The handshake of a connector with this key."""
    return Connector(End(key=key, own=who, nonce=secrets.token_bytes(32), fields=tuple(FIELDS)))


def follower(rank: int, world: int, *, launch: bytes = ZEROS) -> Identity:
    """A follower's control link to rank 0."""
    return identity(rank, 0, world, link=CONTROL, launch=launch)


def neighbour(rank: int, world: int, *, launch: bytes = ZEROS) -> Identity:
    """The ring link from the rank before."""
    return identity((rank - 1) % world, rank, world, link=RING, launch=launch)


class Stranger:
    """One connection, and all bytes that came on it."""

    def __init__(self, target: Address, *, source: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection(target, PATIENCE, source_address=(source, 0))
        self.got = b""

    def send(self, data: bytes) -> None:
        """Send what the other side still takes."""
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def read(self, count: int) -> bytes:
        """Up to ``count`` bytes; fewer where the other side closed."""
        data = b""
        with contextlib.suppress(OSError):
            while len(data) < count and (piece := self._socket.recv(count - len(data))):
                data += piece
        self.got += data
        return data

    def until_closed(self) -> float:
        """Read to the end; returns how long it took. `TimeoutError` where no end came."""
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            while piece := self._socket.recv(4096):
                self.got += piece
        return time.monotonic() - began

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def __del__(self) -> None:
        """A test need not close every one of hundreds."""
        with contextlib.suppress(AttributeError):
            self.close()

    def leave_at_once(self) -> None:
        """Say nothing and see the other side close too: it has looked at its door by then."""
        self._socket.shutdown(socket.SHUT_WR)
        self.until_closed()


def greetings(rank: int, world: int) -> dict[str, bytes]:
    """First words that are no hello of this protocol, or one that must not be answered."""
    own = follower(1, world) if rank == 0 else neighbour(rank, world)
    hello = make_frame("hello", own.encode(CONNECTOR, secrets.token_bytes(32)), sequence=0)
    tls = bytes.fromhex("160301002f0100002b0303") + bytes(32) + bytes.fromhex("000004130113020100")
    acceptors = own.encode(ACCEPTOR, secrets.token_bytes(32))
    return {
        "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 200,
        "tls": tls + bytes(200),
        "random": random.Random(1).randbytes(4096),
        "zeros": bytes(4096),
        "half a hello": hello[:100],
        "hello in the wrong role": make_frame("hello", acceptors, sequence=0),
        "four gigabytes to come": _with_length(hello, 0xFFFFFFFF) + bytes(4096),
        "no payload": _with_length(hello, 0),
        "flipped bit": hello[:60] + bytes([hello[60] ^ 1]) + hello[61:],
        "a frame of later": make_frame("bye", sequence=0) + bytes(200),
    }


def _with_length(frame: bytes, length: int) -> bytes:
    """A frame whose header says another length, with the right checksum."""
    head = frame[:8] + struct.pack("<I", length) + frame[12:28]
    return head + struct.pack("<I", crc32c(head)) + frame[32:]


class Flood:
    """Strangers without an end, a fixed number at a time, until the block is left."""

    def __init__(self, count: int, one: Callable[[], None]) -> None:
        self._over = threading.Event()
        self._one = one
        self.done = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                self._one()
            self.done += 1


def memory_kib(pid: int) -> int:
    """VmRSS of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0])


def descriptors(pid: int) -> int:
    """Open descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
