"""Decode rounds that are recorded once a shape and replayed: a CUDA graph, or its twin on the CPU.

The hop is outside: rows are copied into the recording's own memory before, and out of it after.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from typing import TYPE_CHECKING, Protocol

import torch

from stagelink_torch.layer import Batch, Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagelink_torch.layer import Setup
    from stagelink_torch.model import Model

    Work = Callable[[], torch.Tensor]

# Recordings attend over a power of two of positions, at least this many.
BUCKET_MIN = 256
# Most positions of all streams together, whose keys and values a recorded round puts side by side:
# beyond it a round attends to them where they lie, stream by stream.
_GATHERED_MAX = 1 << 18
# A recording holds memory of its own: beyond this many shapes, the same work runs without one.
_RECORDINGS_MAX = 64
# Shapes that ``warm`` records before the first round, each for the price of two steps without a
# graph: few streams and short ones first.
_WARMED_MAX = 16
_LOG = logging.getLogger("stagelink.torch")


class Recorder(Protocol):
    """Turns a function without arguments into one that repeats its work on the same memory."""

    def first(self, work: Work) -> torch.Tensor:
        """Run the work for the first time, so that its libraries are ready; return its result."""
        ...

    def record(self, work: Work) -> Work:
        """Return what repeats the work, with the same memory for its result every time.

        ``work`` is called and computes nothing meanwhile. ``RuntimeError``: there is no recording.
        """
        ...


class EagerRecorder:
    """Calls the work again: the same steps on the same memory, without a graph."""

    def first(self, work: Work) -> torch.Tensor:
        """Run it."""
        return work()

    def record(self, work: Work) -> Work:
        """Return the work itself."""
        return work


class CudaRecorder:
    """Captures the work in a CUDA graph."""

    def __init__(self, device: torch.device) -> None:
        """Take the device."""
        self._device = device
        # Replays come one after the other and their results are copied out, so that all recordings
        # can share one pool; torch's own stream for captures is made once, on whichever device.
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def first(self, work: Work) -> torch.Tensor:
        """Run on the stream that captures: cuBLAS has a workspace for each stream."""
        side, current = self._stream, torch.cuda.current_stream(self._device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            result = work()
        # The result's memory is the side stream's: its next use there waits for this one too.
        current.wait_stream(side)
        return result

    def record(self, work: Work) -> Work:
        """Capture; nothing is computed."""
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use their own devices meanwhile.
        mode = "thread_local"
        # Where a capture fails, torch leaves its stream the current one: the outer block does not.
        with (
            torch.cuda.stream(torch.cuda.current_stream(self._device)),
            _nothing_collected(),
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode),
        ):
            result = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


class Runner(Protocol):
    """Runs a batch through the model."""

    def run(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the rows after the last own layer."""
        ...

    def usual(self, slots: Sequence[int]) -> list[Batch]:
        """Return the decode batches that are worth a run before the first round, in free slots."""
        ...


class PlainRunner:
    """Runs every batch step by step."""

    def __init__(self, model: Model, setup: Setup) -> None:
        """Take the model."""
        self._model, self._setup = model, setup

    def run(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Run."""
        return self._model.run(rows, batch)

    def usual(self, slots: Sequence[int]) -> list[Batch]:
        """Return one row."""
        return [Batch.of([Piece(slots[0], 0, 0, 1)], self._setup)]


class GraphRunner:
    """Replays decode rounds; everything else step by step.

    Which of the two a round takes, and over how many positions it attends, follows from its plan
    alone. A shape that is not recorded, because there are ``_RECORDINGS_MAX`` already or because
    the device has no memory for one more, runs the same work at once: its bits are a replay's.
    """

    def __init__(self, model: Model, setup: Setup, recorder: Recorder) -> None:
        """Take the model and how to record."""
        self._model, self._setup = model, setup
        self._recorder = recorder
        self._shapes: dict[tuple[int, int], _Recording] = {}
        self._is_full = False

    def run(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Replay where every stream has one row."""
        bucket = decode_bucket(batch, self._setup.context)
        if not bucket:
            return self._model.run(rows, batch)
        self._model.note(batch)
        # From here on no layer sees a piece: what the host knows of them is not what is replayed.
        recording = self._shapes.get((batch.rows, bucket))
        if recording is not None:
            return recording.replay(rows, batch)
        if self._is_full or len(self._shapes) >= _RECORDINGS_MAX:
            one = Batch((), batch.rows, batch.positions, batch.slots, bucket)
            return self._model.run(rows, one)
        return self._first(rows, batch, bucket)

    def usual(self, slots: Sequence[int]) -> list[Batch]:
        """Return a batch of each shape that is likely, at most ``_WARMED_MAX``."""
        shapes = [
            (count, level)
            for level in range(_levels(self._setup.context))
            for count in range(1, min(len(slots), self._setup.rows_max) + 1)
        ]
        shapes.sort(key=sum)
        batches = [
            self._at_end(slots[:count], min(BUCKET_MIN << level, self._setup.context))
            for count, level in shapes[:_WARMED_MAX]
        ]
        return [batch for batch in batches if decode_bucket(batch, self._setup.context)]

    def _at_end(self, slots: Sequence[int], bucket: int) -> Batch:
        """Return a row of each slot at a bucket's last position."""
        pieces = [Piece(slot, bucket - 1, at, at + 1) for at, slot in enumerate(slots)]
        return Batch.of(pieces, self._setup)

    def _first(self, rows: torch.Tensor, batch: Batch, bucket: int) -> torch.Tensor:
        """Run a shape's first round, which is a round like any other, and record the shape."""
        own = torch.empty_like(rows)
        positions, slots = torch.empty_like(batch.positions), torch.empty_like(batch.slots)
        recording = _Recording(own, positions, slots)
        recording.fill(rows, batch)

        def work() -> torch.Tensor:
            return self._model.run(own.clone(), Batch((), len(own), positions, slots, bucket))

        result = self._recorder.first(work).clone()
        try:
            recording.repeat = self._recorder.record(work)
        except RuntimeError as error:
            # Memory, most of all: the next ones would not fit either, and each try empties torch's
            # cache. The round itself is done.
            self._is_full = True
            _LOG.warning(
                "%d streams over %d positions and shapes not met before run without a CUDA graph, "
                "slower, with the same bits; expected to record them, got: %s",
                batch.rows,
                bucket,
                error,
            )
        else:
            self._shapes[batch.rows, bucket] = recording
        return result


class _Recording:
    """The memory of one shape, and what repeats its work."""

    def __init__(self, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        self._rows, self._positions, self._slots = rows, positions, slots
        self.repeat: Work

    def fill(self, rows: torch.Tensor, batch: Batch) -> None:
        """Put a round into the recording's memory."""
        self._rows.copy_(rows)
        self._positions.copy_(batch.positions)
        self._slots.copy_(batch.slots)

    def replay(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Run a round; the rows are copied out of the recording's memory."""
        self.fill(rows, batch)
        return self.repeat().clone()


def decode_bucket(batch: Batch, context: int) -> int:
    """Return over how many positions a batch of single rows attends; 0 for any other batch.

    It follows from the plan and the context alone, and so is the same on every stage.
    """
    if len(batch.pieces) != batch.rows or any(piece.rows != 1 for piece in batch.pieces):
        return 0
    longest = max(piece.last for piece in batch.pieces)
    bucket = BUCKET_MIN
    while bucket < longest:
        bucket *= 2
    bucket = min(bucket, context)
    return bucket if bucket * batch.rows <= _GATHERED_MAX else 0


def make_runner(model: Model, setup: Setup, *, graphs: bool) -> Runner:
    """Return what runs batches on the setup's device; ``graphs`` where the family allows them."""
    if setup.device.type == "cuda" and graphs:
        return GraphRunner(model, setup, CudaRecorder(setup.device))
    return PlainRunner(model, setup)


def _levels(context: int) -> int:
    """Return how many buckets a context has."""
    levels = 1
    while BUCKET_MIN << (levels - 1) < context:
        levels += 1
    return levels


@contextlib.contextmanager
def _nothing_collected() -> Iterator[None]:
    """Keep Python's collector from freeing device memory, which would break a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
