"""Where the contenders of bench/llamacpp.py run: this machine's loopback, or hosts and their wires.

Hosts are network namespaces (root). A wire carries 1 Gbit/s, or hands every byte on a millisecond
later through the fault proxy, which each end dials in the other's place. It measures nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
WIRES = ("loopback", "1 Gbit/s", "1 ms each way")
RATE, BURST, DELAY_MS = "1gbit", "32kb", 1
# In a host of its own a port is free.
RING_PORT, RPC_PORT = 7100, 7200
COMMAND_SECONDS = 20.0
# The same hosts under other addresses: what the proxies dial.
ALIAS = "10.78.0.{}"


class Loopback:
    """All ranks on this machine as it is."""

    def within(self, rank: int) -> list[str]:
        """What a rank's command begins with."""
        del rank
        return []

    def listen(self, rank: int) -> str:
        """Where a rank of the ring listens."""
        del rank
        return "127.0.0.1:0"

    def rpc(self, free_port: int) -> str:
        """Where the RPC server is."""
        return f"127.0.0.1:{free_port}"


class Between:
    """A rank a host."""

    def __init__(self, hosts: Any) -> None:
        self._hosts = hosts

    def within(self, rank: int) -> list[str]:
        """What a rank's command begins with."""
        words: list[str] = self._hosts.within(rank)
        return words

    def listen(self, rank: int) -> str:
        """Where a rank of the ring listens."""
        return f"{self._hosts.address(rank)}:{RING_PORT + rank}"

    def rpc(self, free_port: int) -> str:
        """Where the RPC server is: on the second host."""
        del free_port
        return f"{self._hosts.address(1)}:{RPC_PORT}"


@contextlib.contextmanager
def wire(name: str, count: int) -> Iterator[Loopback | Between]:
    """Lay a wire of ``WIRES`` between ``count`` ranks."""
    if name == WIRES[0]:
        yield Loopback()
        return
    sys.path.insert(0, str(ROOT))
    from tests.hosts.namespaces import Hosts  # noqa: PLC0415 (needs root, and only this does)

    with Hosts(count) as hosts:
        if name == WIRES[1]:
            hosts.shape(RATE, BURST)
            yield Between(hosts)
            return
        with contextlib.ExitStack() as stack:
            _delay(hosts, count, stack)
            yield Between(hosts)


def why_not(name: str) -> str | None:
    """Why this machine has no such wire, if it has none."""
    if name == WIRES[0]:
        return None
    sys.path.insert(0, str(ROOT))
    from tests.hosts.namespaces import why_not as reason  # noqa: PLC0415

    if name == WIRES[2] and proxy_program() is None:
        return "the fault proxy is not built: cargo build --package stagelink-fault"
    found: str | None = reason()
    return found


def proxy_program() -> Path | None:
    """The built fault proxy, the faster build first."""
    named = os.environ.get("STAGELINK_FAULT_PROXY")
    places = [Path(named)] if named else []
    places += [ROOT / "target" / kind / "stagelink-fault-proxy" for kind in ("release", "debug")]
    return next((place for place in places if place.exists()), None)


def _delay(hosts: Any, count: int, stack: contextlib.ExitStack) -> None:
    """Put a proxy before every host on every other one, which dials it under its own address."""
    for number in range(count):
        _on(hosts, number, "ip", "address", "add", f"{_alias(number)}/32", "dev", "lo")
    for here, there in itertools.permutations(range(count), 2):
        cable = f"to{there}from{here}"
        far = _on(hosts, there, "cat", f"/sys/class/net/to{here}from{there}/address").strip()
        route = [f"{_alias(there)}/32", "dev", cable, "src", _alias(here)]
        _on(hosts, here, "ip", "route", "add", *route)
        known = [_alias(there), "lladdr", far, "dev", cable, "nud", "permanent"]
        _on(hosts, here, "ip", "neighbour", "replace", *known)
    for number in range(count):
        ports = [RING_PORT + number, *([RPC_PORT] if number == 1 else [])]
        for port in ports:
            own = f"{hosts.address(number)}:{port}"
            _proxy(hosts.within(number), (f"{_alias(number)}:{port}", own), stack)
    for here, there in itertools.permutations(range(count), 2):
        _on(hosts, here, "ip", "address", "add", f"{hosts.address(there)}/32", "dev", "lo")
        for port in [RING_PORT + there, *([RPC_PORT] if there == 1 else [])]:
            own, other = f"{hosts.address(there)}:{port}", f"{_alias(there)}:{port}"
            _proxy(hosts.within(here), (own, other), stack, f"latency both {DELAY_MS}")


def _proxy(
    within: list[str],
    ends: tuple[str, str],
    stack: contextlib.ExitStack,
    command: str = "",
) -> None:
    listen, target = ends
    words = [str(proxy_program()), "--target", target, "--listen", listen, "--seed", "0"]
    process = subprocess.Popen(
        [*within, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(_end, process)
    if process.stdin is None or process.stdout is None or not process.stdout.readline():
        raise RuntimeError(f"the fault proxy does not listen on {listen}")
    if command:
        process.stdin.write(command + "\n")
        process.stdin.flush()
        if not process.stdout.readline().startswith("ok"):
            raise RuntimeError(f"the fault proxy refused {command!r}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def _alias(number: int) -> str:
    return ALIAS.format(number + 1)


def _on(hosts: Any, number: int, *command: str) -> str:
    words = [*hosts.within(number), *command]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True
    )
    return done.stdout
