"""A ring that still waits for one rank, seen from outside: rank 0's door, or a follower's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from tests.adversary.strangers import (
    KEY,
    Address,
    Stranger,
    address_of,
    descriptors,
    follower,
    memory_kib,
    neighbour,
)
from tests.faults.ring_of_stubs import Rank, StubRing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.second_reader.handshake import Identity

# Slots for connections without a proof, and one that is being closed.
PENDING_MAX = 8 + 1
# Pages that an allocator touches while it works; a leak of one slot a stranger would be far more.
FLAT_KIB = 2048
JOIN_SECONDS = 30.0


@dataclasses.dataclass
class Door:
    """A rank that listens at boot, its process, and the ring that lacks its last rank."""

    ring: StubRing
    rank: int

    @property
    def address(self) -> Address:
        return address_of(self.ring.addresses[self.rank])

    @property
    def process(self) -> Rank:
        return self.ring.ranks[self.rank]

    @property
    def expected(self) -> Identity:
        """Whom it waits for; on a follower the launch id is not known to a stranger."""
        world = self.ring.world
        return follower(1, world) if self.rank == 0 else neighbour(self.rank, world)

    def completes(self) -> str:
        """The rank that was missing comes, and everyone joins within the deadline.

        What the rank at the door says of the strangers that came meanwhile.
        """
        late = self.ring.add(self.ring.world - 1)
        said = {
            one.rank: one.next("joined", JOIN_SECONDS)["strangers"]
            for one in (late, *(self.ring.ranks[rank] for rank in range(self.ring.world - 1)))
        }
        return str(said[self.rank])


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def lead(key_file: str) -> Iterator[Door]:
    """Rank 0 of two, alone so far."""
    with StubRing(key_file, world=2, absent=(1,), join_seconds=JOIN_SECONDS) as ring:
        yield Door(ring, 0)


@pytest.fixture(params=["lead", "follower"])
def door(key_file: str, request: pytest.FixtureRequest) -> Iterator[Door]:
    """Rank 0 of two, or rank 1 of three that has found rank 0, with the last rank missing."""
    rank = 0 if request.param == "lead" else 1
    world = rank + 2
    with StubRing(key_file, world=world, absent=(world - 1,), join_seconds=JOIN_SECONDS) as ring:
        yield Door(ring, rank)


@dataclasses.dataclass
class Footprint:
    """What a process took before strangers came."""

    pid: int
    kib: int
    open: int

    @classmethod
    def of(cls, door: Door) -> Footprint:
        """Of a rank that has looked at its door, so that all that it opens for itself is open."""
        Stranger(door.address).leave_at_once()
        one = door.process
        return cls(one.pid, memory_kib(one.pid), descriptors(one.pid))

    def is_flat(self) -> bool:
        """No memory and no descriptors beyond the slots."""
        grown = memory_kib(self.pid) - self.kib
        return grown < FLAT_KIB and descriptors(self.pid) <= self.open + PENDING_MAX
