"""What can be done to a running ring: signals to ranks, and commands to the proxies on its links.

Each function returns one that does it and says when; whether it was named is the case's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.faults.stub_rank import ROW_BYTES

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from tests.faults.ring_of_stubs import StubRing
    from tests.support.fault_proxy import FaultProxy

    Inject = Callable[[StubRing], float]

HEADER_BYTES = 32
# A keep-alive, and the plan of one stream that one row returns of (docs/protocol.md 6.7).
KEEP_ALIVE_BYTES = HEADER_BYTES + 24
PLAN_BYTES = HEADER_BYTES + 24 + 28 + 4
ROWS_FRAME_BYTES = HEADER_BYTES + ROW_BYTES
# Where the rows frames of a boundary link begin: after hello and proof.
ROWS_AT = 160 + 64


def signalled(rank: int, number: signal.Signals) -> Inject:
    """Send a signal to one rank."""
    return lambda ring: ring.send(rank, number)


def on_control(rank: int, command: str) -> Inject:
    """Give a command to the proxy on a rank's control link."""
    return lambda ring: _command(ring.control[rank], command)


def on_boundary(rank: int, command: str) -> Inject:
    """Give a command to the proxy on the link from a rank's predecessor."""
    return lambda ring: _command(ring.boundary[rank], command)


def in_coming_rows(rank: int, command: str, at: int) -> Inject:
    """A command about the rows frame after the one that is under way, ``at`` bytes into it.

    ``command`` has ``{offset}`` where that byte's place in the stream belongs.
    """

    def inject(ring: StubRing) -> float:
        proxy = ring.boundary[rank]
        frames = (proxy.status()[0]["up"]["taken"] - ROWS_AT) // ROWS_FRAME_BYTES
        # Two further, so that it has not begun when the command arrives.
        offset = ROWS_AT + (frames + 2) * ROWS_FRAME_BYTES + at
        return _command(proxy, command.format(offset=offset))

    return inject


def in_coming_plan(rank: int, command: str, frame_bytes: int, at: int) -> Inject:
    """The same for the plan frames on a control link, all of which have the same size by then."""

    def inject(ring: StubRing) -> float:
        proxy = ring.control[rank]
        offset = proxy.status()[0]["down"]["taken"] + 3 * frame_bytes + at
        return _command(proxy, command.format(offset=offset))

    return inject


def _command(proxy: FaultProxy, line: str) -> float:
    """From the answer on no byte passes against the command."""
    proxy.command(line)
    return time.monotonic()
