"""What the kernel knows of one TCP connection: addresses, segment size, path, congestion control.

It reads a descriptor and closes it; it neither sends nor waits.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
import sys

# Offset of tcpi_pmtu in Linux's struct tcp_info, whose fields never move (linux/tcp.h).
_PMTU_AT = 60
_INFO_BYTES = 104
_NAME_BYTES = 16


@dataclasses.dataclass(frozen=True, slots=True)
class TcpFacts:
    """One connection as its own end sees it; ``None`` is what this system does not tell."""

    host: str
    port: int
    peer: str
    mss: int | None
    path_mtu: int | None
    congestion: str | None


def read_facts(descriptor: int) -> TcpFacts:
    """Ask a connected socket, and close the descriptor; ``OSError`` where it is none."""
    with socket.socket(fileno=descriptor) as connection:
        own, other = connection.getsockname(), connection.getpeername()
        return TcpFacts(
            host=own[0],
            port=own[1],
            peer=other[0],
            mss=_number(connection, "TCP_MAXSEG"),
            path_mtu=_path_mtu(connection),
            congestion=_congestion(connection),
        )


def _number(connection: socket.socket, name: str) -> int | None:
    option = getattr(socket, name, None)
    return None if option is None else connection.getsockopt(socket.IPPROTO_TCP, option)


def _path_mtu(connection: socket.socket) -> int | None:
    if sys.platform != "linux":
        return None
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _PMTU_AT + 4:
        return None
    return int(struct.unpack_from("=I", info, _PMTU_AT)[0])


def _congestion(connection: socket.socket) -> str | None:
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        return None
    name = connection.getsockopt(socket.IPPROTO_TCP, option, _NAME_BYTES)
    return name.split(b"\0", 1)[0].decode("ascii", "replace")
