"""Runs recorded rounds again in this process: a whole model, or a few layers at a time from disk.

It knows no ring and no link; what it makes is compared with a ring's recording elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import EngineSettings, read_family
from stagelink.engine_registry import find_engine
from stagelink.errors import ConfigError
from stagelink.node.asked_engines import common_cuts
from stagelink.node.engine_errors import engine_errors
from stagelink.node.rows import BoundaryRows
from stagelink.ring import plan_of
from stagelink.verify.recording import RowFormat, returned_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from stagelink.engine import Checkpoint, EngineDescription, StageEngine
    from stagelink.request.round import Round

    Bytes = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float32]
    Indexed = dict[int, Bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedRange:
    """Layers of the reference that are in memory, and the buffers that rounds go through."""

    engine: StageEngine
    rows: BoundaryRows
    needs_token_ids: bool

    def play(self, rounds: Mapping[int, Round], given: Indexed | None) -> Indexed:
        """Run rounds in order; return each one's rows by its index.

        Args:
            rounds: By index; complete streams, so that nothing is left open.
            given: The rows that come in, by index; ``None`` on the lead's range.
        """
        made = {}
        for index, one in rounds.items():
            size = self.rows.size(one.rows_total)
            out = self.rows.outgoing[0][:size]
            plan = plan_of(one, token_ids=self.needs_token_ids)
            with engine_errors(f"computing reference round {index}"):
                if given is None:
                    ids = np.asarray(one.token_ids, dtype=np.int64)
                    self.engine.run_first(plan, ids, out)
                else:
                    taken = self.rows.incoming[0][:size]
                    taken[...] = given[index]
                    self.engine.run(plan, taken, out)
            made[index] = out.copy()
        return made

    def head(self, given: Indexed) -> dict[int, Floats]:
        """Return the logits of rows that return, by index of the round."""
        made = {}
        for index, rows in given.items():
            count = rows.size // self.rows.size(1)
            if not count:
                continue
            taken = self.rows.incoming[0][: rows.size]
            taken[...] = rows
            with engine_errors(f"computing the head of reference round {index}"):
                made[index] = np.array(self.engine.run_head(taken, count), np.float32)
        return made


class Reference:
    """One engine that computes a model again, range by range.

    Attributes:
        name: The engine's name.
        described: What it says of itself, of all layers.
        cuts: Where the engine can cut the model in two, ascending.
    """

    def __init__(
        self, checkpoint: Checkpoint, name: str, settings: EngineSettings,
        progress: Callable[[str, int, int], None],
    ) -> None:  # fmt: skip
        """Make it of all layers once, to hear now what the engine cannot do.

        Raises:
            ConfigError: The engine is not installed, or does not take the model or the settings.
        """
        self.name = name
        self._checkpoint, self._settings, self._progress = checkpoint, settings, progress
        self._family = read_family(checkpoint.config, str(checkpoint.path), checkpoint.tensors)
        # The one range that no engine's rules for cuts refuse; it reads no weights.
        engine = self._make(0, self._family.layers)
        self.described: EngineDescription = engine.describe()
        engine.close()
        self.cuts = common_cuts(checkpoint, self._family, [name])

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self._family.layers

    @property
    def form(self) -> RowFormat:
        """Format of this engine's rows."""
        told = self.described
        return RowFormat(told.row_dtype, told.width, told.planes)

    def whole_bytes(self) -> int:
        """Bytes of the whole model's weights as this engine would hold them."""
        return self.described.weight_bytes

    def check_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Refuse a ring that is cut where this engine cannot be.

        Raises:
            ConfigError: ``engine_cut``.
        """
        for first, _ in ranges[1:]:
            if first not in self.cuts:
                allowed = ", ".join(map(str, self.cuts)) or "none"
                raise ConfigError(
                    f"reference engine {self.name!r}: expected a cut before one of its layers "
                    f"{allowed}, got one before layer {first}; change --layers, or name another "
                    "--reference-engine",
                    reason="engine_cut",
                )

    @contextlib.contextmanager
    def range(self, first: int, end: int) -> Iterator[LoadedRange]:
        """Hold layers ``first..end`` in memory, with the lead's ends where ``first`` is 0."""
        engine = self._make(first, end)
        try:
            what = f"reference: layers {first}-{end}"
            with engine_errors("loading the reference"):
                engine.load(lambda done, total: self._progress(what, done, total))
                engine.warm()
            rows = BoundaryRows(engine.describe(), self._settings.rows_max)
            yield LoadedRange(engine, rows, self._family.needs_token_ids)
        finally:
            engine.close()

    def through(
        self, ranges: Sequence[tuple[int, int]], rounds: Mapping[int, Round],
        given: Sequence[Indexed | None],
    ) -> list[Indexed]:  # fmt: skip
        """Run several sets of rows through the same layers; each range is loaded once.

        Args:
            ranges: Half-open and contiguous; one is in memory at a time.
            rounds: By index.
            given: Rows into the first range, a set an element; ``None``: the token ids.
        """
        sets: list[Indexed | None] = list(given)
        for first, end in ranges:
            with self.range(first, end) as loaded:
                sets = [loaded.play(rounds, one) for one in sets]
        return [one for one in sets if one is not None]

    def _make(self, first: int, end: int) -> StageEngine:
        return find_engine(self.name)(
            self._checkpoint, self._family, first, end, lead=first == 0, settings=self._settings
        )


def pieces(
    first: int, end: int, layers: int | None, cuts: Sequence[int]
) -> list[tuple[int, int]]:  # fmt: skip
    """Cut a range into pieces of at most ``layers`` layers; ``None`` leaves it whole.

    Args:
        first: The range's first layer.
        end: The layer after its last.
        layers: Most layers of a piece; one has more where no cut is allowed before.
        cuts: Layers before which a cut is allowed, ascending.
    """
    made, begin = [], first
    while begin < end:
        until = end if layers is None else min(begin + layers, end)
        if until < end and until not in cuts:
            inside = [at for at in cuts if begin < at < end]
            until = max((at for at in inside if at < until), default=min(inside, default=end))
        made.append((begin, until))
        begin = until
    return made


def only_returned(rounds: Mapping[int, Round], rows: Indexed, form: RowFormat) -> Indexed:
    """Return those of a stage's rows that go back to rank 0, still plane-major."""
    made = {}
    for index, one in rounds.items():
        offsets = [offset for _, _, offset in returned_rows(one)]
        shape = form.planes, one.rows_total, form.row_bytes // form.planes
        made[index] = rows[index].reshape(shape)[:, offsets].reshape(-1)
    return made


def convert_rows(rows: Bytes, form: RowFormat, to: RowFormat) -> Bytes:
    """Return a ring's rows in the reference's format; as they are where that is the same."""
    if form == to:
        return rows
    values = form.floats(rows).reshape(-1, form.planes, form.width).transpose(1, 0, 2)
    if to.dtype == "bfloat16":
        wide = np.ascontiguousarray(values).view(np.uint32)
        # To nearest, ties to even, as every backend rounds.
        stored = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype("<u2")
        return stored.reshape(-1).view(np.uint8)
    target = np.float16 if to.dtype == "float16" else np.float32
    return np.ascontiguousarray(values, dtype=target).reshape(-1).view(np.uint8)
