"""A weight matrix and its product with rows; on the CPU it may be made block by block.

It changes no bit by that. What a product of one row waits for is memory, and MKL's asks for it in
short runs where a matrix is narrow: a sum over a block of the matrix brings it into the cache at
the memory's own speed, and the product then finds it there. Whether that is faster depends on the
machine and the width, so it is measured when an engine warms up (``ReadAhead.choose``).

A product of many rows with a very wide matrix (a head over a whole vocabulary) writes its rows so
far apart that they push each other out of the cache: made in blocks that stay there, and copied
into place, it takes less.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink_torch.weights import LentMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink_torch.layer import Setup

# A block and what the product itself needs fit the second-level cache of most cores.
BLOCK_BYTES = 768 << 10
# Rows of a block are a multiple of this: a product's own step through the rows is smaller.
_ROWS = 32
# From this size on a product is made in blocks, each of at most so much.
WIDE_BYTES = 16 << 20
_PART_BYTES = 1 << 20
_TRIES = 3
_KEY = "read ahead"
_RESULTS = "wide results"


class ReadAhead:
    """Whether the matrices of a stage read ahead: one switch for all, off until it is chosen.

    Attributes:
        on: Whether they do.
    """

    def __init__(self) -> None:
        """Begin switched off."""
        self.on = False

    @classmethod
    def of(cls, setup: Setup) -> ReadAhead:
        """Return the switch of a stage."""
        return setup.once(_KEY, cls)

    def choose(self, step: Callable[[], torch.Tensor]) -> None:
        """Time a decode step both ways, in turn, and stay with the faster one.

        Should a BLAS give a block of a matrix other bits than the whole, it stays off.
        """
        plain: list[float] = []
        ahead: list[float] = []
        results = []
        for _ in range(_TRIES):
            for taken, self.on in ((plain, False), (ahead, True)):
                begin = time.perf_counter()
                results.append(step())
                taken.append(time.perf_counter() - begin)
        same = all(torch.equal(one, results[0]) for one in results)
        self.on = same and min(ahead) < min(plain)


class Matrix:
    """``rows @ weight.T + bias``, as ``torch.nn.functional.linear`` has it, bit for bit."""

    __slots__ = (
        "_ahead",
        "_biases",
        "_blocks",
        "_results",
        "_step",
        "_wide_rows",
        "bias",
        "weight",
    )

    def __init__(
        self, weight: torch.Tensor, setup: Setup, bias: torch.Tensor | None = None
    ) -> None:
        """Take ``weight`` ``[out, in]`` and ``bias`` ``[out]``."""
        self.weight, self.bias = weight, bias
        self._ahead = ReadAhead.of(setup)
        self._results = setup.once(_RESULTS, LentMemory)
        self._blocks: tuple[torch.Tensor, ...] = ()
        self._biases: tuple[torch.Tensor, ...] = ()
        # How many rows have a result that is made in blocks.
        self._wide_rows = sys.maxsize
        self._step = max(_ROWS, BLOCK_BYTES // weight[0].nbytes // _ROWS * _ROWS)
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            self._blocks = _split(weight, self._step)
            self._biases = () if bias is None else _split(bias, self._step)
            if not setup.invariant:
                self._wide_rows = -(-WIDE_BYTES // (len(weight) * weight.itemsize))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``[n, out]`` of ``[n, in]``, in memory of its own."""
        if len(rows) == 1 and self._ahead.on and len(self._blocks) > 1:
            return self._one_row(rows[0])
        if len(rows) >= self._wide_rows:
            return self._wide(rows)
        return functional.linear(rows, self.weight, self.bias)

    def _one_row(self, row: torch.Tensor) -> torch.Tensor:
        """Return ``[1, out]``, block by block."""
        out = row.new_empty(1, len(self.weight))
        parts = _split(out[0], self._step)
        if self.bias is None:
            for block, part in zip(self._blocks, parts, strict=True):
                block.sum()
                torch.mv(block, row, out=part)
        else:
            for block, bias, part in zip(self._blocks, self._biases, parts, strict=True):
                block.sum()
                torch.addmv(bias, block, row, out=part)
        return out

    def _wide(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``[n, out]``, made in blocks of its columns."""
        nbytes = len(rows) * len(self.weight) * rows.itemsize
        out = self._results.take(nbytes).view(rows.dtype).view(len(rows), -1)
        step = max(_ROWS, _PART_BYTES // rows.itemsize // len(rows) // _ROWS * _ROWS)
        parts = zip(_split(self.weight, step), _split(out, step, 1), strict=True)
        for begin, (block, part) in zip(range(0, len(self.weight), step), parts, strict=True):
            bias = None if self.bias is None else self.bias[begin : begin + step]
            part.copy_(functional.linear(rows, block, bias))
        return out


def _split(tensor: torch.Tensor, step: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """Return views of ``step`` rows (or columns) each."""
    return tensor.split(step, dim)  # type: ignore[no-untyped-call,no-any-return]
