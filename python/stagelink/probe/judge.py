"""What is wrong with a link, by its figures and by what its ends say of themselves.

Pure: every warning has a stable code and a line for a person that says what to do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.probe.whole import Measured
    from stagelink.probe.word import Bandwidth, End

# A healthy link carries 94 % of its rate as payload at an MTU of 1500; below this something is off.
SLOW_SHARE = 0.6
FAST_ETHERNET_MBIT = 100
SHORT_LINK_US = 1000.0


@dataclasses.dataclass(frozen=True, slots=True)
class Warn:
    """One warning: its stable code, and one line."""

    code: str
    text: str


def warnings_of(measured: Measured) -> list[Warn]:
    """Return everything that is off with a link; nothing for a link that could not be measured."""
    start, end = measured.start.end, measured.end.end
    if start is None or end is None:
        return []
    found: list[Warn] = []
    for one in (start, end):
        found += _of_interface(one)
    found += _slow(measured, start, end)
    found += _congestion(measured, start, end)
    if start.mtu is not None and end.mtu is not None and start.mtu != end.mtu:
        text = (
            f"rank {start.rank} has an MTU of {start.mtu} on {start.interface} and rank "
            f"{end.rank} one of {end.mtu} on {end.interface}: set both to the same"
        )
        found.append(Warn("mtu_differs", text))
    return found


def _of_interface(end: End) -> Iterator[Warn]:
    place = f"rank {end.rank} uses {end.interface}"
    if end.wifi:
        yield Warn("wifi", f"{place}, which is Wi-Fi: its delay varies; use a cable")
    if end.speed_mbit is not None and end.speed_mbit <= FAST_ETHERNET_MBIT:
        text = f"{place}, which runs at {end.speed_mbit} Mb/s: check cable, port and switch"
        yield Warn("fast_ethernet", text)
    if end.duplex == "half":
        yield Warn("half_duplex", f"{place}, which is half duplex: check cable, port and switch")


def _slow(measured: Measured, start: End, end: End) -> Iterator[Warn]:
    speeds = [speed for speed in (start.speed_mbit, end.speed_mbit) if speed is not None]
    if not speeds or start.path == "loopback":
        return
    directions: list[tuple[int, int, Bandwidth | None]] = [
        (start.rank, end.rank, measured.start.forward),
        (end.rank, start.rank, measured.end.back),
    ]
    for sender, receiver, figures in directions:
        mbit = None if figures is None else figures.mb_per_s * 8
        if mbit is not None and mbit < SLOW_SHARE * min(speeds):
            text = (
                f"rank {sender} to rank {receiver} carries {mbit:.0f} Mb/s where the slower "
                f"interface says {min(speeds)} Mb/s: look for a slower hop, a bad cable or other "
                f"traffic"
            )
            yield Warn("slower_than_interface", text)


def _congestion(measured: Measured, start: End, end: End) -> Iterator[Warn]:
    times = measured.start.round_trip
    if times is None or times.p50_us >= SHORT_LINK_US:
        return
    ranks = [str(one.rank) for one in (start, end) if one.congestion == "bbr"]
    if ranks:
        who = f"rank {ranks[0]} sends" if len(ranks) == 1 else f"ranks {' and '.join(ranks)} send"
        text = (
            f"{who} with bbr over a link of {times.p50_us:.0f} us: cubic or reno is faster there "
            f"(sysctl net.ipv4.tcp_congestion_control)"
        )
        yield Warn("bbr", text)
