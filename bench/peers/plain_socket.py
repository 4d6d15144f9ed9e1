"""A plain Python socket as the peer: ``sendall`` and ``recv_into`` on one TCP connection.

No framing and no threads; it shows what the interpreter alone costs.
"""

from __future__ import annotations

import platform
import socket
import time

from end import End, begin, go_round

CONNECT_SECONDS = 20


def connect(end: End) -> socket.socket:
    """The one connection: rank 1 listens, rank 0 dials until it answers."""
    address = ("127.0.0.1", end.ports[0])
    if end.rank == 1:
        with socket.create_server(address) as listener:
            listener.settimeout(CONNECT_SECONDS)
            link, _ = listener.accept()
    else:
        late = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                link = socket.create_connection(address, timeout=CONNECT_SECONDS)
                break
            except ConnectionRefusedError:
                if time.monotonic() > late:
                    raise
                time.sleep(0.01)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def main() -> None:
    """Go round with blocking calls, or with nonblocking ones again and again."""
    end = begin()
    link = connect(end)
    link.settimeout(None)
    out, back = memoryview(bytearray(end.payload)), memoryview(bytearray(end.size))
    spin = end.wait == "spin"
    link.setblocking(not spin)

    def send() -> None:
        done = 0
        while done < end.size:
            try:
                done += link.send(out[done:])
            except BlockingIOError:
                continue

    def receive() -> None:
        done = 0
        while done < end.size:
            try:
                got = link.recv_into(back[done:])
            except BlockingIOError:
                continue
            if got == 0:
                raise ConnectionError("expected bytes, the other end closed")
            done += got

    go_round(end, platform.python_version(), send, receive, lambda: bytes(back))


if __name__ == "__main__":
    main()
