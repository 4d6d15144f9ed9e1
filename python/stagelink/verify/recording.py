"""What a ring was given and what it gave: rounds, every stage's rows, logits, digests of states.

It reads what the stages of a launch wrote; it compares nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.errors import StagelinkError
from stagelink.request.round import RETURN_LAST, Entry, Round
from stagelink.verify.strand import RETURN_ALL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from stagelink.verify.strand import Strand

    Floats = npt.NDArray[np.float32]
    Bytes = npt.NDArray[np.uint8]

ROW_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class RowFormat:
    """How the rows of a boundary lie in bytes: planes after planes, ``width`` values a row each."""

    dtype: str
    width: int
    planes: int

    @property
    def plane_bytes(self) -> int:
        """Bytes of one row in one plane."""
        return self.width * ROW_DTYPES[self.dtype].itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, all planes."""
        return self.planes * self.plane_bytes

    def floats(self, rows: Bytes) -> Floats:
        """Return a round's rows as float32 ``[rows, planes x width]``."""
        stored = rows.view(ROW_DTYPES[self.dtype]).reshape(self.planes, -1, self.width)
        if self.dtype == "bfloat16":
            values = (stored.astype(np.uint32) << 16).view(np.float32)
        else:
            values = stored.astype(np.float32)
        rows_first = np.ascontiguousarray(values.transpose(1, 0, 2))
        return rows_first.reshape(stored.shape[1], self.planes * self.width)


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """Rounds as they were run, and what each stream was for: ``(role, prompt)`` by stream id."""

    rounds: tuple[Round, ...]
    roles: Mapping[int, tuple[str, int]]

    @classmethod
    def of(cls, rounds: Sequence[Round], strands: Sequence[Strand]) -> Script:
        """Make one of rounds that were run and the strands that they carried."""
        return cls(tuple(rounds), {one.stream: (one.role, one.prompt) for one in strands})

    def as_json(self) -> dict[str, Any]:
        """Return plain values that `parse` reads."""
        rounds = [
            [[dataclasses.astuple(entry) for entry in one.entries], list(one.token_ids)]
            for one in self.rounds
        ]
        return {"rounds": rounds, "roles": [[key, *value] for key, value in self.roles.items()]}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Script:
        """Read what `as_json` made; ``StagelinkError`` ``recording`` for anything else."""
        try:
            rounds = tuple(
                Round(tuple(Entry(*entry) for entry in entries), tuple(int(one) for one in ids))
                for entries, ids in data["rounds"]
            )
            roles = {int(stream): (str(role), int(n)) for stream, role, n in data["roles"]}
        except (KeyError, TypeError, ValueError) as error:
            raise StagelinkError(f"no script of rounds: {error}", reason="recording") from error
        return cls(rounds, roles)

    def streams(self, role: str) -> list[int]:
        """Return the streams of a role, in the order in which they were opened."""
        return [stream for stream, (found, _) in self.roles.items() if found == role]

    def only(self, roles: Sequence[str]) -> list[int]:
        """Return the indexes of rounds whose streams all have one of the roles."""
        wanted = {stream for role in roles for stream in self.streams(role)}
        return [
            index
            for index, one in enumerate(self.rounds)
            if all(entry.id in wanted for entry in one.entries)
        ]


def returned_rows(one: Round) -> list[tuple[int, int, int]]:
    """Return stream, position and offset in the round of every row that returns, in order."""
    found, begin = [], 0
    for entry in one.entries:
        offsets = range(entry.rows) if entry.returns == RETURN_ALL else range(0)
        if entry.returns == RETURN_LAST:
            offsets = range(entry.rows - 1, entry.rows)
        found += [(entry.id, entry.first + offset, begin + offset) for offset in offsets]
        begin += entry.rows
    return found


def _positions(one: Round, stream: int) -> list[tuple[int, int]]:
    """Return offset in the round and position of every row of a stream."""
    found, begin = [], 0
    for entry in one.entries:
        if entry.id == stream:
            found += [(begin + row, entry.first + row) for row in range(entry.rows)]
        begin += entry.rows
    return found


class Recording:
    """A script with the files of its ring.

    Attributes:
        script: The rounds.
        form: Format of a boundary row.
        logits: Float32 ``[returned rows, vocab]``, in the order of the rounds.
        is_partial: Only rank 0 wrote its rows down: the second set holds the rows that came back to
            it, of all other ranks together.
        states: By rank, the digests of streams as they ended: ``{stream: digest or None}``.
    """

    def __init__(
        self, script: Script, form: RowFormat, logits: Floats, rows: Sequence[Bytes],
        states: Sequence[Mapping[int, str | None]] = (), *, is_partial: bool = False,
    ) -> None:  # fmt: skip
        """Take files that were checked for their sizes; see `read_recording`."""
        self.is_partial = is_partial
        self.script, self.form, self.logits = script, form, logits
        self.states = states
        self._rows = rows
        all_rows = [one.rows_total for one in script.rounds]
        self._counts = [len(returned_rows(one)) for one in script.rounds]
        self._offsets = [
            [0, *itertools.accumulate(form.row_bytes * count for count in counts)]
            for counts in (all_rows, self._counts)
        ]
        self._places: dict[int, dict[int, int]] = {}
        place = 0
        for one in script.rounds:
            for stream, position, _ in returned_rows(one):
                # A row that was computed again after a cut back is the one that counts.
                self._places.setdefault(stream, {})[position] = place
                place += 1

    def places(self, stream: int) -> list[int]:
        """Return where a stream's logits lie, in order of position."""
        found = self._places.get(stream, {})
        return [found[position] for position in sorted(found)]

    def rows(self, rank: int, index: int) -> Bytes:
        """Return the rows that a stage made in one round, as bytes."""
        offsets = self._offsets[self.is_partial and rank > 0]
        return self._rows[rank][offsets[index] : offsets[index + 1]]

    @property
    def ranks(self) -> range:
        """Return the ranks whose rows can be read."""
        return range(len(self._rows))

    def stream_rows(self, rank: int, stream: int) -> dict[int, bytes]:
        """Return the rows that a stage made of a stream, by position.

        A row that was computed again after a cut back is the one that counts.
        """
        found = {}
        for index, one in enumerate(self.script.rounds):
            held = self.rows(rank, index)
            if self.is_partial and rank > 0:
                numbered = enumerate(returned_rows(one))
                places = [(at, place[1]) for at, place in numbered if place[0] == stream]
            else:
                places = _positions(one, stream)
            if places:
                by_plane = held.reshape(self.form.planes, -1, self.form.plane_bytes)
                found.update({position: by_plane[:, at].tobytes() for at, position in places})
        return found

    def returned(self, index: int) -> slice:
        """Return where the logits of one round lie."""
        begin = sum(self._counts[:index])
        return slice(begin, begin + self._counts[index])


def read_recording(
    script: Script, form: RowFormat, vocab: int, *, logits: Path, rows: Sequence[Path],
    states: Sequence[Path] = (), is_partial: bool = False,
) -> Recording:  # fmt: skip
    """Map the files of a launch; ``StagelinkError`` ``recording`` where a size is not the script's.

    Args:
        script: The rounds that the ring ran.
        form: Format of a boundary row.
        vocab: Logits of one row.
        logits: Float32, every returned row.
        rows: A file a rank, the rows of every round.
        is_partial: See `Recording`.
        states: A file a rank, a line a stream that ended: id and digest, or ``-``.
    """
    returned = sum(len(returned_rows(one)) for one in script.rounds)
    total = sum(one.rows_total for one in script.rounds)
    mapped = _map(logits, 4 * returned * vocab).view("<f4").reshape(returned, vocab)
    stages = [
        _map(path, (returned if is_partial and rank > 0 else total) * form.row_bytes)
        for rank, path in enumerate(rows)
    ]
    ends = [_states(path) for path in states]
    return Recording(script, form, mapped, stages, ends, is_partial=is_partial)


def _map(path: Path, size: int) -> Bytes:
    found = path.stat().st_size if path.exists() else 0
    if found != size:
        raise StagelinkError(
            f"{path.name}: expected {size} recorded bytes, found {found}", reason="recording"
        )
    return np.memmap(path, np.uint8, "r") if size else np.empty(0, np.uint8)


def _states(path: Path) -> dict[int, str | None]:
    found: dict[int, str | None] = {}
    if path.exists():
        for line in path.read_text(encoding="ascii").splitlines():
            stream, _, digest = line.partition(" ")
            found[int(stream)] = None if digest == "-" else digest
    return found
