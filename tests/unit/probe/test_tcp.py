"""The kernel's facts of a real connection on loopback; the asked descriptor is closed."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from stagelink._native import interface_of
from stagelink.probe.tcp import read_facts


def test_a_connection_tells_its_addresses_and_its_segment_size() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        descriptor = os.dup(client.fileno())
        facts = read_facts(descriptor)
        own = client.getsockname()
    assert (facts.host, facts.port, facts.peer) == (*own, "127.0.0.1")
    assert facts.mss is not None
    assert facts.mss >= 536
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells these")
def test_linux_tells_the_path_and_the_congestion_control() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        facts = read_facts(os.dup(client.fileno()))
    assert facts.path_mtu is not None
    assert facts.path_mtu >= 1280
    default = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii")
    assert facts.congestion == default.strip()


def test_an_address_has_an_interface_only_where_it_is_this_machines() -> None:
    assert interface_of("127.0.0.1") in ("lo", "lo0")
    assert interface_of("192.0.2.1") is None
    assert interface_of("no address") is None
