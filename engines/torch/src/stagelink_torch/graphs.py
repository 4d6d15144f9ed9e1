"""Decode rounds that are recorded once a shape and replayed: a CUDA graph, or its twin on the CPU.

The hop is outside: rows are copied into the recording's own memory before, and out of it after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from stagelink_torch.layer import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink_torch.layer import Setup
    from stagelink_torch.model import Model

# Recordings attend over a power of two of positions, at least this many.
BUCKET_MIN = 256
# A recording holds memory of its own: beyond this many shapes, the same work runs without one.
_RECORDINGS_MAX = 64


class Recorder(Protocol):
    """Turns a function without arguments into one that repeats its work on the same memory."""

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Return what repeats ``work`` and returns its result, the same memory every time."""
        ...


class EagerRecorder:
    """Calls the work again: the same steps on the same memory, without a graph."""

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
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

    def record(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Run once to warm up libraries, capture, and return what replays."""
        side = self._stream
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use their own devices meanwhile.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode=mode):
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


class PlainRunner:
    """Runs every batch step by step."""

    def __init__(self, model: Model) -> None:
        """Take the model."""
        self._model = model

    def run(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Run."""
        return self._model.run(rows, batch)


class GraphRunner:
    """Replays decode rounds; everything else step by step.

    Which of the two a round takes, and over how many positions it attends, follows from its plan
    alone. A shape that is not recorded, because there are ``_RECORDINGS_MAX`` already or because
    the device has no memory for one more, runs the same work at once: its bits are a replay's.
    """

    def __init__(self, model: Model, setup: Setup, width: int, recorder: Recorder) -> None:
        """Take the model and how to record."""
        self._model, self._setup, self._width = model, setup, width
        self._recorder = recorder
        self._shapes: dict[tuple[int, int], _Recording] = {}
        self._is_full = False

    def run(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Replay where every stream has one row."""
        bucket = decode_bucket(batch, self._setup.context)
        if not bucket:
            return self._model.run(rows, batch)
        key = (batch.rows, bucket)
        recording = self._shapes.get(key)
        if recording is None:
            recording = self._prepare(rows, batch, bucket)
            if self._record(recording):
                self._shapes[key] = recording
        return recording.replay(rows, batch)

    def _record(self, recording: _Recording) -> bool:
        """Record a shape. Its first runs write the round's own keys and values, as it will."""
        if self._is_full or len(self._shapes) >= _RECORDINGS_MAX:
            return False
        try:
            recording.work = self._recorder.record(recording.work)
        except torch.OutOfMemoryError:
            # The next ones would not fit either, and each try would empty torch's cache.
            self._is_full = True
        return not self._is_full

    def _prepare(self, rows: torch.Tensor, batch: Batch, bucket: int) -> _Recording:
        """Return the memory of a shape with this round in it, and the work on it."""
        device = self._setup.device
        own = torch.empty((batch.rows, self._width), dtype=self._setup.dtype, device=device)
        positions = torch.zeros(batch.rows, dtype=torch.int64, device=device)
        slots = torch.zeros(batch.rows, dtype=torch.int64, device=device)
        recording = _Recording(own, positions, slots)
        recording.fill(rows, batch)

        def work() -> torch.Tensor:
            again = Batch(batch.pieces, batch.rows, positions, slots, bucket)
            return self._model.run(own.clone(), again)

        recording.work = work
        return recording


class _Recording:
    """The memory of one shape, and what repeats its work."""

    def __init__(self, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        self._rows, self._positions, self._slots = rows, positions, slots
        self.work: Callable[[], torch.Tensor]

    def fill(self, rows: torch.Tensor, batch: Batch) -> None:
        """Put a round into the recording's memory."""
        self._rows.copy_(rows)
        self._positions.copy_(batch.positions, non_blocking=True)
        self._slots.copy_(batch.slots, non_blocking=True)

    def replay(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Run a round; the rows are copied out of the recording's memory."""
        self.fill(rows, batch)
        return self.work().clone()


def decode_bucket(batch: Batch, context: int) -> int:
    """Return over how many positions a batch of single rows attends; 0 for any other batch."""
    if len(batch.pieces) != batch.rows or any(piece.rows != 1 for piece in batch.pieces):
        return 0
    longest = max(piece.last for piece in batch.pieces)
    bucket = BUCKET_MIN
    while bucket < longest:
        bucket *= 2
    return min(bucket, context)


def make_runner(model: Model, setup: Setup, width: int, *, graphs: bool) -> Runner:
    """Return what runs batches on the setup's device; ``graphs`` where the family allows them."""
    if setup.device.type == "cuda" and graphs:
        return GraphRunner(model, setup, width, CudaRecorder(setup.device))
    return PlainRunner(model)
