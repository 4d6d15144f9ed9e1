"""A probe between two network namespaces sees the wire that lies between them.

Only root can make namespaces; elsewhere these tests are skipped. A name is never used twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.cli.keygen import write_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADDRESSES = ("10.99.7.1", "10.99.7.2")
SECONDS = 90


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[list[tuple[str, str]]]:
    """Two namespaces joined by a cable: their names, and the name of each one's interface."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("needs root, ip and tc to make network namespaces")
    tag = secrets.token_hex(4)
    made = [(f"sl-probe-{tag}-{side}", f"sl{tag}{side}") for side in "ab"]
    with contextlib.ExitStack() as stack:
        for name, _ in made:
            try:
                _run("ip", "netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"this system makes no namespaces: {error.stderr!r:.100}")
            stack.callback(_run, "ip", "netns", "del", name)
        (left, left_end), (right, right_end) = made
        peer = ("peer", "name", right_end, "netns", right)
        _run("ip", "link", "add", left_end, "netns", left, "type", "veth", *peer)
        for (name, end), address in zip(made, ADDRESSES, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
            for device in ("lo", end):
                _run("ip", "-n", name, "link", "set", device, "up")
        yield made


def _shape(host: tuple[str, str], rate: str) -> None:
    name, end = host
    tbf = ("tbf", "rate", rate, "burst", "32kb", "latency", "50ms")
    _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", end, "root", *tbf)


def _probe(hosts: list[tuple[str, str]], folder: Path) -> dict[str, Any]:
    """Both ranks, each in its own namespace; what rank 0 prints."""
    key = folder / "key"
    write_key(key)
    lead = f"{ADDRESSES[0]}:7100"
    ranks = []
    for rank, (name, _) in enumerate(hosts):
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "stagelink", "probe"]
        command += ["--rank", str(rank), "--world", "2", "--key-file", str(key), "--json"]
        command += ["--listen", f"{ADDRESSES[rank]}:7100", "--quiet", "--wait", "block"]
        command += ["--lead", lead] if rank else []
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    with ranks[0], ranks[1]:
        told = [process.communicate(timeout=SECONDS)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], told
    link: dict[str, Any] = json.loads(told[0])["links"][0]
    return link


def test_a_link_of_100_mbit_is_measured_as_one_both_ways(
    hosts: list[tuple[str, str]], tmp_path: Path
) -> None:
    for host in hosts:
        _shape(host, "100mbit")
    link = _probe(hosts, tmp_path)
    for direction in ("forward", "back", "both"):
        assert 40 < link[direction]["mb_per_s"] * 8 < 110, link
    assert [end["interface"] for end in link["ends"]] == [end for _, end in hosts]
    assert {end["path"] for end in link["ends"]} == {"network"}
    # The virtual interface says 10 Gb/s.
    assert "slower_than_interface" in [warning["code"] for warning in link["warnings"]]


def test_a_link_that_is_slow_one_way_is_told_apart(
    hosts: list[tuple[str, str]], tmp_path: Path
) -> None:
    _shape(hosts[0], "1gbit")
    _shape(hosts[1], "50mbit")
    link = _probe(hosts, tmp_path)
    assert 20 < link["back"]["mb_per_s"] * 8 < 55, link
    assert link["forward"]["mb_per_s"] > 2 * link["back"]["mb_per_s"], link


def test_another_mtu_at_one_end_is_warned_of(hosts: list[tuple[str, str]], tmp_path: Path) -> None:
    name, end = hosts[1]
    _run("ip", "-n", name, "link", "set", end, "mtu", "1400")
    link = _probe(hosts, tmp_path)
    assert [end["mtu"] for end in link["ends"]] == [1500, 1400]
    assert "mtu_differs" in [warning["code"] for warning in link["warnings"]]
