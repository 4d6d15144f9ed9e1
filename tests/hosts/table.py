"""Faults of cables, as rows of the fault table: each rank is a host of its own.

They need network namespaces (`namespaces.why_not`); the tests of this folder do the same.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from tests.faults.case import Case, rows_overdue, silence
from tests.faults.ring_of_stubs import StubRing
from tests.hosts.namespaces import Hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Pull = Callable[[Hosts], None]


def ring_across(hosts: Hosts, key_file: str, **settings: Any) -> StubRing:
    """A rank a host."""
    place = [{"listen": hosts.listen(rank), "within": hosts.within(rank)} for rank in range(3)]
    return StubRing(key_file, of_rank=dict(enumerate(place)), **settings)


@contextlib.contextmanager
def across_hosts(key_file: str, **settings: Any) -> Iterator[StubRing]:
    """The same on hosts that are made for it; the ring's ``hosts`` are they."""
    with Hosts() as hosts, ring_across(hosts, key_file, **settings) as ring:
        ring.hosts = hosts
        yield ring


def _pulled(pull: Pull) -> Callable[[StubRing], float]:
    def inject(ring: StubRing) -> float:
        pull(ring.hosts)
        return time.monotonic()

    return inject


CABLES = [
    Case(
        fault="all cables of rank 2 pulled",
        phase="decode",
        inject=_pulled(lambda hosts: hosts.unplug(2)),
        named=(0, 2),
        reason="silent",
        found_seconds=silence,
    ),
    Case(
        fault="all cables of rank 0 pulled",
        phase="idle",
        inject=_pulled(lambda hosts: hosts.unplug(0)),
        named=(0, 1, 2),
        reason="silent",
        found_seconds=silence,
    ),
    Case(
        fault="the cable from rank 1 to rank 2 pulled",
        phase="decode",
        inject=_pulled(lambda hosts: hosts.pull(1, 2)),
        named=(1,),
        reason="deadline",
        found_seconds=rows_overdue,
    ),
]
