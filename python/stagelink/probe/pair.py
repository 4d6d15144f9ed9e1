"""Both ends of one link: a ring of two for it alone, over the whole ring's addresses and key.

A ring of two has a connection each way, so every link is measured like every other, whatever the
world. What fails here is a fact about the link, and does not end the whole ring.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from typing import TYPE_CHECKING

from stagelink import _native
from stagelink.errors import StagelinkError
from stagelink.probe import terms
from stagelink.probe.answer import answer
from stagelink.probe.interface import Interface, read_interface
from stagelink.probe.measure import Measurement
from stagelink.probe.tcp import read_facts
from stagelink.probe.word import End, Fault, Machine, Word
from stagelink.ring import Ring, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.config import LinkConfig
    from stagelink.probe.terms import Link

# Both ends are known to live. One that dies just now is named by the whole ring only after this.
JOIN_SECONDS_MAX = 5.0
# Everything of one link, join included; the sum of what its parts may take, and some room.
LINK_SECONDS = 75.0


def measure_link(
    link: Link, config: LinkConfig, whole: _native.Ring, addresses: dict[int, str]
) -> Word:
    """Measure or answer, whichever this rank's end does; a failure is part of the word.

    Args:
        link: One of this rank's links.
        config: The rank's own place; its listening address is used again.
        whole: The whole ring, which stays open.
        addresses: Listening address of every rank.
    """
    machine = this_machine(config.rank, config.wait)
    try:
        with _joined(link, config, whole, addresses) as ring:
            end = _own_end(ring, config.rank)
            if config.rank == link.end:
                return Word(machine, end, back=answer(ring))
            measurement = Measurement(ring)
            round_trip, forward = measurement.round_trips(), measurement.forward()
            both = measurement.both(measurement.back(), forward)
            return Word(machine, end, round_trip, forward, both=both)
    except (StagelinkError, OSError) as error:
        reason = error.reason if isinstance(error, StagelinkError) else "system"
        return Word(machine, fault=Fault(reason, _told(link, one_line(error)[:512])))


def this_machine(rank: int, wait: str) -> Machine:
    """The facts that figures need beside them."""
    return Machine(
        rank=rank,
        host=platform.node()[:64] or "?",
        system=platform.system(),
        release=platform.release(),
        machine=platform.machine(),
        cores=os.cpu_count(),
        load=round(os.getloadavg()[0], 2),
        wait=wait,
    )


def _told(link: Link, text: str) -> str:
    """The text, and which ranks its numbers stand for where they are not their own."""
    if (link.start, link.end) == (0, 1):
        return text
    return f"{text} (in the link's own ring rank 0 is rank {link.start}, rank 1 rank {link.end})"


@contextlib.contextmanager
def _joined(
    link: Link, config: LinkConfig, whole: _native.Ring, addresses: dict[int, str]
) -> Iterator[_native.Ring]:
    """An open ring of two whose rank 0 is the link's start; ended in any case, and in time."""
    rank = 0 if config.rank == link.start else 1
    native = _native.Ring.join(
        listener=_native.Listener(addresses[config.rank]),
        lead=addresses[link.start] if rank else None,
        key_file=config.key_file,
        launch_id=terms.launch_id_of(whole.launch_id, link),
        fields=terms.LINK_FIELDS,
        description=terms.link_description(rank),
        join_seconds=min(config.join_seconds, JOIN_SECONDS_MAX),
        wait=config.wait,
        suite=config.suite,
    )
    text = f"link {link} was not measured within {LINK_SECONDS:g} s"
    watchdog = threading.Timer(LINK_SECONDS, native.fail, ("deadline", text))
    watchdog.daemon = True
    with Ring(native) as ring:
        watchdog.start()
        try:
            ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=JOIN_SECONDS_MAX)
            yield native
        finally:
            watchdog.cancel()


def _own_end(ring: _native.Ring, rank: int) -> End:
    """What this machine knows of the connection over which it sends to the other end."""
    following, previous = _native.boundary_sockets(ring)
    os.close(previous)
    facts = read_facts(following)
    is_own = _native.interface_of(facts.peer) is not None
    # What a machine sends to its own address never reaches that address's interface.
    name = _native.interface_of("127.0.0.1" if is_own else facts.host)
    interface = Interface("?") if name is None else read_interface(name)
    return End(
        rank=rank,
        address=facts.host,
        interface=name,
        path="loopback" if is_own else "network",
        mtu=interface.mtu,
        speed_mbit=interface.speed_mbit,
        duplex=interface.duplex,
        wifi=interface.wifi,
        mss=facts.mss,
        path_mtu=facts.path_mtu,
        congestion=facts.congestion,
    )
