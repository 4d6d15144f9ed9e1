"""What an engine is handed, and what it promises: the types of the seam.

It computes nothing; what engines share beside the types is in ``checks`` and ``round``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np


class PlanLike(Protocol):
    """A round's plan as columns, one element a stream entry, in ascending stream id.

    ``stagelink.Plan`` is the real one. Rows of a round lie stream after stream in entry order.
    """

    @property
    def ids(self) -> Sequence[int]:
        """Stream ids."""
        ...

    @property
    def ops(self) -> Sequence[int]:
        """Stream ops, ``OPEN`` .. ``RESUME``."""
        ...

    @property
    def firsts(self) -> Sequence[int]:
        """Position of each entry's first row."""
        ...

    @property
    def rows(self) -> Sequence[int]:
        """Rows of each entry."""
        ...

    @property
    def accepted(self) -> Sequence[int]:
        """Kept rows of each stream's previous round."""
        ...

    @property
    def generations(self) -> Sequence[int]:
        """State generation before each entry."""
        ...

    @property
    def returns(self) -> Sequence[int]:
        """``RETURN_ALL``, ``RETURN_LAST`` or ``RETURN_NONE`` of each entry."""
        ...

    @property
    def cuts(self) -> Sequence[int]:
        """Row offsets that divide the round into batches."""
        ...

    @property
    def token_ids(self) -> Sequence[int] | None:
        """Token id of every row, where the family's layers read them (``needs_token_ids``)."""
        ...

    @property
    def rows_total(self) -> int:
        """Rows of the round."""
        ...

    @property
    def rows_returned(self) -> int:
        """Rows that go back to rank 0."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a stage asks of its engine: decided before boot, the same on every rank.

    Attributes:
        dtype: Compute and row dtype, ``"float32"`` or what the engine names.
        context: Most positions of one stream.
        streams_max: Slots; one stream holds one slot from open to close.
        rows_max: Most rows of one round.
        chunk_rows: Rows of a full prompt chunk.
        device: What to compute on: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"metal"``, as
            the engine has it; each rank's own choice.
        threads: Compute threads, or ``None`` for what the environment says; each rank's own choice.
        kv_dtype: dtype of the KV, or ``"auto"`` for the engine's own.
        batch_invariant: Whether a stream's bits must not depend on its neighbours or its chunks; an
            engine that cannot promise it refuses.
    """

    dtype: str = "float32"
    context: int = 2048
    streams_max: int = 4
    rows_max: int = 256
    chunk_rows: int = 128
    device: str = "auto"
    threads: int | None = None
    kv_dtype: str = "auto"
    batch_invariant: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class EngineDescription:
    """What an engine says of itself before it loads; goes into the boot description.

    Attributes:
        backend: ``"numpy"``, ``"torch-cpu"``, ``"mlx-metal"``: what computes.
        device: The device's own name, for people.
        row_dtype: dtype of the boundary rows, one of docs/protocol.md 6.1.
        kv_dtype: dtype of the KV, same names.
        width: Values of one plane of one row.
        planes: Planes of a boundary row.
        kv_rows: Positions that the KV holds, over all streams.
        states: Streams that can be open at once.
        batch_invariant: True only where a stream's bits do not depend on its neighbours or chunks.
        weight_bytes: Bytes that the own tensors take as held; known from the checkpoint's table.
        libraries: What computes beneath the engine and may change bits, with versions:
            ``"torch 2.13.0+cpu, MKL 2024.2"``.
        keeps: Whether ``keep`` is done; where it is not, it raises ``unsupported_op``.
        saves: Whether ``save`` and ``restore`` are done; where not, they raise ``unsupported_op``.
    """

    backend: str
    device: str
    row_dtype: str
    kv_dtype: str
    width: int
    planes: int
    kv_rows: int
    states: int
    batch_invariant: bool
    weight_bytes: int
    libraries: str = ""
    keeps: bool = True
    saves: bool = True


class Drafter(Protocol):
    """Guesses tokens from the last layer's rows, on the lead; a round of the ring verifies them.

    An engine that has one hands it out by ``load_drafter()`` after ``load``; ``ConfigError``
    ``engine_drafter`` where the checkpoint has no head for it. It keeps a state of its own for each
    stream, counted in rows taken, and shares nothing with the engine's streams.
    """

    def draft(
        self, stream: int, first: int, rows: np.ndarray, token_ids: np.ndarray, count: int
    ) -> np.ndarray:
        """Take rows and return int64 ``[count]``: what may follow the last token.

        Args:
            stream: Opened when it is new.
            first: Position of the first row; at most what the stream holds, and cut back to it.
            rows: uint8, the last layer's rows of positions ``first..first + n``, as ``run_head``
                takes them.
            token_ids: int64 ``[n]``: the token after each row; the last has not been run yet.
            count: Tokens wanted; 0 only takes the rows.
        """
        ...

    def keep(self, stream: int, position: int) -> None:
        """Cut a stream back to its first ``position`` rows."""
        ...

    def end(self, stream: int) -> None:
        """Forget a stream."""
        ...


@runtime_checkable
class Beating(Protocol):
    """What an engine may be besides: one that tells inside a long round that it goes on.

    Attributes:
        heartbeat: Set by whoever runs the engine, ``None`` before; called from the thread of the
            round. What it raises breaks the round off and leaves the call.
    """

    heartbeat: Callable[[], None] | None


@runtime_checkable
class Preparing(Protocol):
    """What an engine may be besides: one that takes a plan before its rows are there.

    A follower hears of a round long before the round's rows come, and has nothing to do until then.
    """

    def prepare(self, plan: PlanLike) -> None:
        """Check a plan, and do for it what needs no rows, so that its ``run`` need not.

        No state changes, and ``run`` does the same whether it was called or not: for this plan
        object, which nobody changes, for another one, or after the state has changed. Raises what
        ``run`` would.
        """
        ...


@runtime_checkable
class StageEngine(Protocol):
    """Runs layers ``first..end`` (half-open) of one checkpoint; the lead's also embeds and heads.

    Made by calling the class that an entry point in group ``stagelink.engines`` names, as
    ``factory(checkpoint, family, first, end, lead=bool, settings=EngineSettings)``. The constructor
    reads
    metadata only; it raises ``CheckpointError`` or ``ConfigError`` for what the engine cannot do,
    before any weights
    are read.

    Promises: the same bytes for the same sequence of plans; nothing changes when a call raises; a
        closed or cancelled
    stream frees its slot; nothing of a rows buffer is kept after the call; the calls come from one
    thread.
    """

    def describe(self) -> EngineDescription:
        """Say what this engine is and holds, before ``load``."""
        ...

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read the own tensors, and only them; ``progress(bytes_done, bytes_total)``."""
        ...

    def warm(self) -> None:
        """Run once what the declared shapes need, so that the first round is not the slow one."""
        ...

    def run(self, plan: PlanLike, rows_in: np.ndarray, rows_out: np.ndarray) -> None:
        """Apply the plan's ops to the own state and turn rows into rows.

        Args:
            plan: The round. An entry with op continue cuts the stream's state to ``firsts[i]``
                positions first.
            rows_in: uint8 ``[rows_total * row_bytes]``, plane-major, 64-byte aligned.
            rows_out: uint8 of the same shape; complete when the call returns.
        """
        ...

    def run_first(self, plan: PlanLike, token_ids: np.ndarray, rows_out: np.ndarray) -> None:
        """Lead only: embed int64 ``token_ids`` ``[rows_total]`` and run the own layers."""
        ...

    def run_head(self, rows_in: np.ndarray, rows: int) -> np.ndarray:
        """Lead only: final norm and head over ``rows`` returned rows, at most ``rows_max``.

        Float32 logits ``[rows, vocab]``; ``EngineError`` ``too_many_rows`` for another count.
        """
        ...

    def keep(self, stream: int, position: int) -> None:
        """Cut a stream's state back to ``position`` positions; ``EngineError`` where it cannot.

        ``unknown_stream``, ``wrong_position``, or ``history_gone`` for what it held and lost.
        """
        ...

    def save(self, stream: int) -> bytes:
        """The stream's state of the own layers, as bytes that ``restore`` takes."""
        ...

    def restore(self, stream: int, state: bytes) -> None:
        """Make ``stream`` an open stream with a saved state."""
        ...

    def close(self) -> None:
        """Free everything; the engine is unusable afterwards."""
        ...
