"""What Linux and macOS say of an interface is read; what they do not say stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stagelink.probe.interface import Interface, linux_interface, mac_interface

if TYPE_CHECKING:
    from pathlib import Path

IFCONFIG = """en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 00:00:5e:00:53:01
\tmedia: autoselect (1000baseT <full-duplex,flow-control>)
\tstatus: active
"""
PORTS = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 00:00:5e:00:53:01

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 00:00:5e:00:53:02
"""


def _linux(folder: Path, **files: str) -> Interface:
    (folder / "eth0").mkdir()
    for name, text in files.items():
        (folder / "eth0" / name).write_text(text, encoding="ascii")
    return linux_interface("eth0", folder)


def test_linux_tells_speed_mtu_and_duplex(tmp_path: Path) -> None:
    read = _linux(tmp_path, speed="2500\n", mtu="9000\n", duplex="full\n")
    assert read == Interface("eth0", 9000, 2500, "full", wifi=False)


@pytest.mark.parametrize("speed", ["-1\n", "", "0\n", "unknown"])
def test_a_speed_that_linux_does_not_know_is_none(tmp_path: Path, speed: str) -> None:
    assert _linux(tmp_path, speed=speed, mtu="1500\n", duplex="unknown\n").speed_mbit is None


def test_a_wireless_folder_means_wifi(tmp_path: Path) -> None:
    (tmp_path / "wlan0" / "wireless").mkdir(parents=True)
    assert linux_interface("wlan0", tmp_path).wifi is True


@pytest.mark.parametrize("name", ["eth9", "../eth0", "a/b"])
def test_an_interface_that_is_not_there_tells_nothing(tmp_path: Path, name: str) -> None:
    assert linux_interface(name, tmp_path / "net") == Interface(name)


@pytest.mark.parametrize(
    ("media", "mbit"),
    [("1000baseT", 1000), ("2500Base-T", 2500), ("10Gbase-T", 10_000), ("100baseTX", 100)],
)
def test_macos_tells_speed_mtu_and_duplex(media: str, mbit: int) -> None:
    read = mac_interface("en0", IFCONFIG.replace("1000baseT", media), PORTS)
    assert read == Interface("en0", 1500, mbit, "full", wifi=False)


def test_macos_names_the_wireless_port() -> None:
    read = mac_interface("en1", "en1: flags=8863<UP> mtu 1500\n\tmedia: autoselect\n", PORTS)
    assert read == Interface("en1", 1500, None, None, wifi=True)


def test_a_mac_that_says_nothing_tells_nothing() -> None:
    assert mac_interface("bridge0", "", "") == Interface("bridge0")
