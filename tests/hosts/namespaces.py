"""Hosts on one machine: a network namespace each, and a cable between every two of them.

It needs root and the `ip` and `tc` programs. Every host has one address, which all its cables lead
to, so that a cable can be pulled without pulling the others. It runs nothing on the hosts.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

COMMAND_SECONDS = 20.0
ADDRESSES = {4: "10.77.0.{}", 6: "fd77::{}"}
BITS = {4: 32, 6: 128}


class HostsError(Exception):
    """The system does not let this process make hosts; the text says why."""


class Hosts:
    """Some hosts, all of which go when the block is left.

    Args:
        count: How many.
        family: 4 or 6: the only addresses that they have are of this one.
        mtu: Of every cable.
    """

    def __init__(self, count: int = 3, *, family: int = 4, mtu: int = 1500) -> None:
        self.count, self.family, self.mtu = count, family, mtu
        # A clash with another's is an error and never a host that is used by two.
        self._names = [f"stagelink-{os.getpid()}-{number}" for number in range(count)]
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            for number, name in enumerate(self._names):
                _run("ip", "netns", "add", name)
                self._made.append(name)
                self._on(number, "ip", "link", "set", "lo", "up")
                own = f"{self.address(number)}/{BITS[self.family]}"
                flags = ["nodad"] if self.family == 6 else []
                self._on(number, "ip", "address", "add", own, "dev", "lo", *flags)
            for one, other in itertools.combinations(range(self.count), 2):
                self._plug_in(one, other)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, number: int) -> str:
        """A host's only address, without brackets."""
        return ADDRESSES[self.family].format(number + 1)

    def listen(self, number: int) -> str:
        """The same as a listen address, with any port."""
        host = self.address(number)
        return f"[{host}]:0" if self.family == 6 else f"{host}:0"

    def within(self, number: int) -> list[str]:
        """What a command begins with that runs on a host."""
        return ["ip", "netns", "exec", self._names[number]]

    def pull(self, one: int, other: int) -> None:
        """Pull the cable between two hosts: nothing passes, and nobody is told."""
        self._on(one, "ip", "link", "set", _cable(one, other), "down")

    def unplug(self, number: int) -> None:
        """Pull all cables of a host, at their other ends."""
        for other in range(self.count):
            if other != number:
                self.pull(other, number)

    def shape(self, rate: str, burst: str) -> None:
        """Let every cable carry no more than ``rate`` in each direction."""
        for one, other in itertools.permutations(range(self.count), 2):
            words = ["root", "tbf", "rate", rate, "burst", burst, "latency", "50ms"]
            self._on(one, "tc", "qdisc", "add", "dev", _cable(one, other), *words)

    def _plug_in(self, one: int, other: int) -> None:
        ends = [(one, other), (other, one)]
        near, far = (["name", _cable(*end), "netns", self._names[end[0]]] for end in ends)
        _run("ip", "link", "add", *near, "type", "veth", "peer", *far)
        for here, there in ends:
            self._on(here, "ip", "link", "set", _cable(here, there), "mtu", f"{self.mtu}", "up")
        for here, there in ends:
            self._lead_to(here, there)

    def _lead_to(self, here: int, there: int) -> None:
        cable, address = _cable(here, there), self.address(there)
        route = [f"{address}/{BITS[self.family]}", "dev", cable, "src", self.address(here)]
        self._on(here, "ip", f"-{self.family}", "route", "add", *route)
        # The address lies on the other host's loopback, which does not answer who has it.
        far = self._on(there, "cat", f"/sys/class/net/{_cable(there, here)}/address").strip()
        known = [address, "lladdr", far, "dev", cable, "nud", "permanent"]
        self._on(here, "ip", f"-{self.family}", "neighbour", "replace", *known)

    def _on(self, number: int, *command: str) -> str:
        return _run(*self.within(number), *command)

    def _remove(self) -> None:
        while self._made:
            _run("ip", "netns", "delete", self._made.pop())


def why_not() -> str | None:
    """Why this process cannot make hosts, if it cannot."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Hosts(2) as hosts:
            hosts.shape("1gbit", "32kb")
    except HostsError as error:
        return str(error)
    return None


def _cable(here: int, there: int) -> str:
    return f"to{there}from{here}"


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True
        )
    except FileNotFoundError as error:
        raise HostsError(f"{Path(command[0]).name} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise HostsError(f"{' '.join(command)}: {error.stderr.strip()}") from error
    return done.stdout
