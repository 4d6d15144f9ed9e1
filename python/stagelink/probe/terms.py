"""What the rings of a probe are made of: a fingerprint, descriptions and plans without a model.

It opens no link and measures nothing; who measures what follows from the plans' stream ids.
"""

from __future__ import annotations

import dataclasses
import hashlib
import platform
from typing import TYPE_CHECKING

from stagelink import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

# No serving ring has these digests: theirs are over other tags (stagelink.fingerprint).
WHOLE_FIELDS = [hashlib.sha256(b"stagelink/v1 probe ring %d\0" % k).digest() for k in range(8)]
LINK_FIELDS = [hashlib.sha256(b"stagelink/v1 probe link %d\0" % k).digest() for k in range(8)]

# A row of a link's own ring: small enough for a round trip, and 32,768 of them are 8 MiB.
ROW_BYTES = 256
BURST_ROWS_MAX = 32_768
# A row of the whole ring is one rank's word on the link that it measured last.
WORD_BYTES = 8_192
ROUNDS_AHEAD = 32
_FLOAT_BYTES = 4
_POSITIONS = 1 << 24
_ALL, _NONE = 1, 3

# Streams of a link's own ring: what a round with rows of this stream measures.
ROUND_TRIP, FORWARD, BACK, BOTH = 1, 2, 3, 4


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """One boundary link: ``start`` sends rows to ``end``, by rank."""

    start: int
    end: int

    def __str__(self) -> str:
        """``0 -> 1``."""
        return f"{self.start} -> {self.end}"


def links_of(world: int) -> list[Link]:
    """Every pair of neighbours once, in ring order; in a ring of two both links join one pair."""
    return [Link(rank, (rank + 1) % world) for rank in range(world if world > 2 else 1)]


def launch_id_of(launch_id: bytes, link: Link) -> bytes:
    """The launch id of a link's own ring: nobody but the whole ring's ranks can know it."""
    text = b"stagelink/v1 probe link %d %d\0" % (link.start, link.end)
    return hashlib.sha256(text + launch_id).digest()[: len(launch_id)]


def whole_description(rank: int, world: int) -> _native.Description:
    """A rank of the whole ring: one row a rank in every round."""
    return _description(rank, world, WORD_BYTES, rows_max=world, streams=1)


def link_description(rank: int) -> _native.Description:
    """An end of a link's own ring of two."""
    return _description(rank, 2, ROW_BYTES, rows_max=BURST_ROWS_MAX, streams=BOTH)


class Plans:
    """Plans whose streams only ever grow, so that every stage admits each of them."""

    def __init__(self) -> None:
        """No stream is open yet."""
        self._positions: dict[int, int] = {}
        self._rows: dict[int, int] = {}

    def next(self, stream: int, rows: int) -> _native.Plan:
        """Return the plan of the next round; of stream ``FORWARD`` no row returns.

        A stream that has no round yet is opened, so the streams begin in ascending order.
        """
        is_open = stream in self._positions
        first = self._positions.get(stream, 0)
        accepted = self._rows.get(stream, 0)
        self._positions[stream], self._rows[stream] = first + rows, rows
        return _native.Plan(
            ids=[stream],
            ops=[2 if is_open else 1],
            firsts=[first],
            rows=[rows],
            accepted=[accepted],
            generations=[0],
            returns=[_NONE if stream == FORWARD else _ALL],
        )


def nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _description(
    rank: int, world: int, row_bytes: int, *, rows_max: int, streams: int
) -> _native.Description:
    return _native.Description(
        rank=rank,
        world=world,
        first=rank,
        end=rank + 1,
        layers=world,
        width=row_bytes // _FLOAT_BYTES,
        planes=1,
        row_dtype="float32",
        kv_dtype="float32",
        chunk_rows=rows_max,
        rows_max=rows_max,
        streams_max=streams,
        context=_POSITIONS,
        states=streams,
        kv_rows=_POSITIONS,
        weight_bytes=0,
        engine_version=f"probe {_native.__version__}",
        backend="none",
        device="none",
        host=platform.node()[:64] or "?",
        rounds_in_flight_max=2 * ROUNDS_AHEAD,
    )
