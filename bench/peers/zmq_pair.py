"""ZeroMQ as the peer: a PAIR over TCP, with the zero-copy flags of pyzmq.

ZeroMQ's own thread drives the socket; how it waits is not ours to choose.
"""

from __future__ import annotations

import zmq
from end import begin, go_round


def main() -> None:
    """Go round with one message each way."""
    end = begin()
    context = zmq.Context()
    link = context.socket(zmq.PAIR)
    # Below copy_threshold (64 KiB) pyzmq copies in spite of copy=False, and is faster for it: its
    # choice stands, so that the figure is its best.
    link.linger = 1000
    address = f"tcp://127.0.0.1:{end.ports[0]}"
    if end.rank == 1:
        link.bind(address)
    else:
        link.connect(address)
    out = bytearray(end.payload)
    came = zmq.Frame()

    def send() -> None:
        link.send(out, copy=False)

    def receive() -> None:
        nonlocal came
        came = link.recv(copy=False)

    go_round(end, zmq.__version__, send, receive, lambda: bytes(came.buffer))
    link.close()
    context.term()


if __name__ == "__main__":
    main()
