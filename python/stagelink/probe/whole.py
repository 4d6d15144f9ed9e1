"""The whole ring of a probe: it shows that all ranks can join, hands the turn on, and gathers.

Round k of it is the turn of link k: its two ranks measure before they send the round's rows on. One
row a rank travels round, and who measured has written its word into its own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink import _native
from stagelink.errors import PeerProtocolError
from stagelink.probe import terms
from stagelink.probe.pair import LINK_SECONDS, measure_link
from stagelink.probe.word import Word, decode, encode
from stagelink.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.config import LinkConfig
    from stagelink.probe.terms import Link

READY_SECONDS = 30.0
# A rank that measures is busy; beyond this it is stuck, whatever its own limits are.
_BUSY_SECONDS = 2 * LINK_SECONDS


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A link and what its two ends said of it."""

    link: Link
    start: Word
    end: Word


def run_lead(
    config: LinkConfig,
    world: int,
    listening: Callable[[str], None],
    measured: Callable[[Measured], None],
) -> list[Measured]:
    """Rank 0: join, let every link be measured in turn, and return all words.

    Args:
        config: Rank 0's place.
        world: How many ranks.
        listening: Told the address that the others dial.
        measured: Told each link when its words are there.
    """
    whole = _Whole(config, world, listening)
    plans, all_measured = terms.Plans(), []
    with Ring(whole.native) as ring:
        ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=READY_SECONDS)
        for link in terms.links_of(world):
            number = ring.send_plan(plans.next(terms.ROUND_TRIP, world))
            whole.clear()
            whole.write(whole.take_turn(link, number))
            ring.send_rows(number, whole.sheet)
            ring.receive_rows(number, whole.sheet)
            one = Measured(link, whole.word_of(link.start), whole.word_of(link.end))
            all_measured.append(one)
            measured(one)
    return all_measured


def run_follower(
    config: LinkConfig, world: int, listening: Callable[[str], None]
) -> list[tuple[Link, Word]]:
    """Another rank: measure when it is its links' turn; return what it said of them."""
    whole = _Whole(config, world, listening)
    links, said = iter(terms.links_of(world)), []
    with Ring(whole.native) as ring:
        ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=READY_SECONDS)
        while (announced := ring.receive_plan()) is not None:
            number, link = announced[0], next(links)
            word = whole.take_turn(link, number)
            if word is not None:
                said.append((link, word))
            ring.receive_rows(number, whole.sheet)
            whole.write(word)
            ring.send_rows(number, whole.sheet)
    return said


class _Whole:
    """One rank of the whole ring.

    Attributes:
        native: The joined ring.
        sheet: One row of ``WORD_BYTES`` a rank.
    """

    def __init__(self, config: LinkConfig, world: int, listening: Callable[[str], None]) -> None:
        """Join, and learn every rank's listening address."""
        listener = _native.Listener(config.listen)
        own = listener.address
        listening(own)
        self._config = config
        self.native = _native.Ring.join(
            listener=listener,
            lead=config.lead,
            key_file=config.key_file,
            launch_id=config.launch_id,
            fields=terms.WHOLE_FIELDS,
            description=terms.whole_description(config.rank, world),
            join_seconds=config.join_seconds,
            wait="block",
            suite=config.suite,
        )
        members = {member["rank"]: member["address"] for member in self.native.members}
        self._addresses = {**members, config.rank: own}
        self.sheet = _native.RowsBuffer(world * terms.WORD_BYTES)

    def take_turn(self, link: Link, number: int) -> Word | None:
        """Measure where this rank is an end of the link; ``None`` where it is none."""
        if self._config.rank not in (link.start, link.end):
            return None
        self.native.progress("computing", round=number, busy_limit_seconds=_BUSY_SECONDS)
        return measure_link(link, self._config, self.native, self._addresses)

    def clear(self) -> None:
        """Make every rank's row empty."""
        memoryview(self.sheet)[:] = bytes(len(self.sheet))

    def write(self, word: Word | None) -> None:
        """Fill the own row."""
        row = bytes(terms.WORD_BYTES) if word is None else encode(word)
        memoryview(self.sheet)[self._row(self._config.rank)] = row

    def word_of(self, rank: int) -> Word:
        """Read a rank's row; ``PeerProtocolError`` ``probe_word`` for none or for a wrong one."""
        word = decode(bytes(memoryview(self.sheet)[self._row(rank)]), rank)
        if word is None:
            raise PeerProtocolError(
                f"rank {rank}: expected its word on the link that it measured, got none",
                reason="probe_word",
                rank=rank,
            )
        return word

    @staticmethod
    def _row(rank: int) -> slice:
        return slice(rank * terms.WORD_BYTES, (rank + 1) * terms.WORD_BYTES)
