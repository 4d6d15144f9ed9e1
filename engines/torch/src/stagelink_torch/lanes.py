"""Streams and events of a device behind one small face, and the same face for the host.

It copies and computes nothing; who waits for what is decided by its callers, and can be tested
where no device is.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Mark(Protocol):
    """A point in a lane's work."""

    def synchronize(self) -> None:
        """Let the host wait until the work before the point is done."""
        ...


class Lanes(Protocol):
    """A lane that computes, which is the current one, and one beside it that copies."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return host memory that the device can copy from and to by itself."""
        ...

    def side(self) -> contextlib.AbstractContextManager[None]:
        """Make the side lane the current one for a while."""
        ...

    def mark_side(self) -> Mark:
        """Mark the side lane's work so far."""
        ...

    def mark_compute(self) -> Mark:
        """Mark the computing lane's work so far."""
        ...

    def side_waits(self, mark: Mark) -> None:
        """Let what the side lane is given from now on wait for a mark."""
        ...

    def compute_waits(self, mark: Mark) -> None:
        """Let what the computing lane is given from now on wait for a mark."""
        ...


class HostLanes:
    """Lanes where everything is done when it is said: the twin for tests, and its own record.

    Attributes:
        record: What was asked for, in order: ``"side begins"``, ``"mark side 3"``, ...
    """

    def __init__(self) -> None:
        """Begin with an empty record."""
        self.record: list[str] = []
        self._marks = 0

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory."""
        return torch.zeros(shape, dtype=dtype)

    @contextlib.contextmanager
    def side(self) -> Iterator[None]:
        """Write down that the side lane is current, and that it no longer is."""
        self.record.append("side begins")
        yield
        self.record.append("side ends")

    def mark_side(self) -> HostMark:
        """Mark."""
        return self._mark("side")

    def mark_compute(self) -> HostMark:
        """Mark."""
        return self._mark("compute")

    def side_waits(self, mark: Mark) -> None:
        """Write down the wait."""
        self.record.append(f"side waits {mark}")

    def compute_waits(self, mark: Mark) -> None:
        """Write down the wait."""
        self.record.append(f"compute waits {mark}")

    def _mark(self, lane: str) -> HostMark:
        """Return the next mark."""
        self._marks += 1
        mark = HostMark(f"{lane} {self._marks}", self.record)
        self.record.append(f"mark {mark}")
        return mark


class HostMark:
    """A mark of ``HostLanes``."""

    def __init__(self, name: str, record: list[str]) -> None:
        """Take its name and the record."""
        self._name = name
        self._record = record

    def __str__(self) -> str:
        return self._name

    def synchronize(self) -> None:
        """Write down the wait."""
        self._record.append(f"host waits {self._name}")


class CudaLanes:
    """The current CUDA stream and a side stream, with events between them."""

    def __init__(self, device: torch.device) -> None:
        """Make the side stream."""
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return pinned memory."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    @contextlib.contextmanager
    def side(self) -> Iterator[None]:
        """Make the side stream the current one."""
        with torch.cuda.stream(self._side):
            yield

    def mark_side(self) -> torch.cuda.Event:
        """Record an event on the side stream."""
        return self._recorded(self._side)

    def mark_compute(self) -> torch.cuda.Event:
        """Record an event on the computing stream: the device's current one outside ``side``."""
        return self._recorded(torch.cuda.current_stream(self._device))

    def side_waits(self, mark: Mark) -> None:
        """Let the side stream wait for an event."""
        if isinstance(mark, torch.cuda.Event):
            self._side.wait_event(mark)

    def compute_waits(self, mark: Mark) -> None:
        """Let the computing stream wait for an event."""
        if isinstance(mark, torch.cuda.Event):
            torch.cuda.current_stream(self._device).wait_event(mark)

    def _recorded(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        return event
