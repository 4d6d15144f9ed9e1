"""Rows between host buffers and the device: the only copies of a stage, at its two ends.

It computes nothing. On the CPU rows are copied once; on CUDA they go through pinned slabs, on a
stream of their own, and events say when a slab may be used again (``lanes.py``).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import torch

from stagelink_torch.lanes import CudaLanes

if TYPE_CHECKING:
    from stagelink_torch.lanes import Lanes, Mark
    from stagelink_torch.layer import Setup

# One batch's rows cross while the batch before is computed.
_SLABS = 2


class Transfer(Protocol):
    """Takes a batch's rows in and gives them out; ``finish`` ends a round."""

    def take(self, source: torch.Tensor, count: int) -> torch.Tensor:
        """Return ``[count, width]`` on the device: ``source`` and zeros behind."""
        ...

    def give(self, rows: torch.Tensor, target: torch.Tensor) -> None:
        """Bring device rows to host memory; complete after ``finish``."""
        ...

    def finish(self) -> None:
        """Wait until every row given is in its place."""
        ...


def make_transfer(setup: Setup, width: int) -> Transfer:
    """Return the device's kind of transfer for rows of ``width`` values."""
    if setup.device.type == "cuda":
        return SlabTransfer(setup, width, CudaLanes(setup.device))
    return DirectTransfer(setup)


class DirectTransfer:
    """Where the device is the host: one copy in, into memory of the batch's own, and one out."""

    def __init__(self, setup: Setup) -> None:
        """Take the dtype."""
        self._dtype = setup.dtype

    def take(self, source: torch.Tensor, count: int) -> torch.Tensor:
        """Return a copy: layers may write to it, and where the rows lay cannot change a bit."""
        rows = torch.empty((count, source.shape[1]), dtype=self._dtype)
        rows[: len(source)] = source
        rows[len(source) :] = 0
        return rows

    def give(self, rows: torch.Tensor, target: torch.Tensor) -> None:
        """Copy."""
        target.copy_(rows)

    def finish(self) -> None:
        """Do nothing: copies are complete when they return."""


class SlabTransfer:
    """Through slabs of pinned host memory, on lanes beside the computing one.

    A slab is written by the host and read by the device, or the other way; ``Mark`` says when the
    one that came first is done with it. No buffer of the caller is touched after ``finish``.
    """

    def __init__(self, setup: Setup, width: int, lanes: Lanes) -> None:
        """Allocate the slabs, ``rows_max`` rows each, on the host and on the device."""
        self._lanes = lanes
        shape = (setup.rows_max + setup.row_step, width)
        self._host_in = [lanes.pinned(shape, setup.dtype) for _ in range(_SLABS)]
        self._host_out = [lanes.pinned(shape, setup.dtype) for _ in range(_SLABS)]
        self._device_in = [
            torch.zeros(shape, dtype=setup.dtype, device=setup.device) for _ in range(_SLABS)
        ]
        # When the slab's last copy in was read, and when the device is done with its own slab: at
        # first with its zeroing, which a first copy on the side lane could otherwise come before.
        self._read: list[Mark | None] = [None] * _SLABS
        self._used: list[Mark] = [lanes.mark_compute()] * _SLABS
        self._leaving: list[_Leaving | None] = [None] * _SLABS
        self._taken = self._given = 0

    def take(self, source: torch.Tensor, count: int) -> torch.Tensor:
        """Copy in on the side lane; computing that follows waits for it, the host does not."""
        at = self._taken % _SLABS
        self._taken += 1
        lanes, host = self._lanes, self._host_in[at]
        _synchronize(self._read[at])
        host[: len(source)] = source
        host[len(source) : count] = 0
        device = self._device_in[at]
        with lanes.side():
            lanes.side_waits(self._used[at])
            device[:count].copy_(host[:count], non_blocking=True)
            self._read[at] = arrived = lanes.mark_side()
        lanes.compute_waits(arrived)
        rows = device[:count].clone()
        self._used[at] = lanes.mark_compute()
        return rows

    def give(self, rows: torch.Tensor, target: torch.Tensor) -> None:
        """Copy out on the side lane, after the computing before; ``finish`` brings it home."""
        at = self._given % _SLABS
        self._given += 1
        self._land(at)
        lanes, host = self._lanes, self._host_out[at][: len(rows)]
        computed = lanes.mark_compute()
        with lanes.side():
            lanes.side_waits(computed)
            host.copy_(rows, non_blocking=True)
            # The rows' memory must outlive the copy: they are held until it is marked done.
            self._leaving[at] = _Leaving(lanes.mark_side(), host, target, rows)

    def finish(self) -> None:
        """Bring every slab that is on its way to its target."""
        for at in range(self._given - _SLABS, self._given):
            self._land(at % _SLABS)

    def _land(self, at: int) -> None:
        """Wait for a slab's copy out and put it where it belongs."""
        leaving = self._leaving[at]
        if leaving is not None:
            leaving.mark.synchronize()
            leaving.target.copy_(leaving.host)
            self._leaving[at] = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaving:
    """Rows on their way out: ``host`` is theirs at ``mark``, and then goes to ``target``."""

    mark: Mark
    host: torch.Tensor
    target: torch.Tensor
    rows: torch.Tensor


def _synchronize(mark: Mark | None) -> None:
    """Wait for a mark on the host, if there is one."""
    if mark is not None:
        mark.synchronize()
