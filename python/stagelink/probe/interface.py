"""What a network interface says of itself: MTU, speed, duplex, wireless or not.

It believes the system; that a link keeps what its interface promises is for a measurement to show.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

_COMMAND_SECONDS = 3.0
_LINUX = Path("/sys/class/net")
_MAC_MEDIA = re.compile(r"media:[^\n(]*\(?(\d+(?:\.\d+)?)(G?)base", re.IGNORECASE)
_MAC_DUPLEX = re.compile(r"<(full|half)-duplex", re.IGNORECASE)
_MAC_MTU = re.compile(r"\bmtu (\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Interface:
    """An interface by its own word; ``None`` is what the system does not tell."""

    name: str
    mtu: int | None = None
    speed_mbit: int | None = None
    duplex: str | None = None
    wifi: bool | None = None


def read_interface(name: str) -> Interface:
    """Ask this system; an interface or a system that does not answer leaves ``None``."""
    if sys.platform == "linux":
        return linux_interface(name, _LINUX)
    if sys.platform == "darwin":
        ports = _said_by("networksetup", "-listallhardwareports")
        return mac_interface(name, _said_by("ifconfig", name), ports)
    return Interface(name)


def linux_interface(name: str, folder: Path) -> Interface:
    """Read ``/sys/class/net``; a virtual interface's speed is what its driver made up."""
    path = folder / name
    if "/" in name or not path.is_dir():
        return Interface(name)
    speed = _number(_text(path / "speed"))
    duplex = _text(path / "duplex")
    return Interface(
        name=name,
        mtu=_number(_text(path / "mtu")),
        speed_mbit=speed or None,
        duplex=duplex if duplex in ("full", "half") else None,
        wifi=(path / "wireless").exists() or (path / "phy80211").exists(),
    )


def mac_interface(name: str, ifconfig: str, ports: str) -> Interface:
    """Read what ``ifconfig NAME`` and ``networksetup -listallhardwareports`` print."""
    mtu, media = _MAC_MTU.search(ifconfig), _MAC_MEDIA.search(ifconfig)
    duplex = _MAC_DUPLEX.search(ifconfig)
    port = re.search(rf"Hardware Port: ([^\n]*)\nDevice: {re.escape(name)}\n", ports + "\n")
    return Interface(
        name=name,
        mtu=int(mtu[1]) if mtu else None,
        speed_mbit=round(float(media[1]) * (1000 if media[2] else 1)) if media else None,
        duplex=duplex[1].lower() if duplex else None,
        wifi=port[1].strip().lower() in ("wi-fi", "airport") if port else None,
    )


def _text(path: Path) -> str:
    # An interface that is down answers a read of its speed with an error.
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _said_by(*command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 (fixed programs of the system)
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
