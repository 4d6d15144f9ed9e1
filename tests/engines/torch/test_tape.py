"""That the twin of a CUDA graph refuses what a capture refuses, and repeats as a graph does.

It runs no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from tests.engines.torch.tape import TapeRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

_READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda rows: rows.sum().item(),
    "list": lambda rows: rows.tolist(),
    "number": lambda rows: int(rows[0]),
    "truth": lambda rows: bool((rows > 0).any()),
    "array": lambda rows: rows.numpy(),
    "equality": lambda rows: torch.equal(rows, rows + 1),
    "mask": lambda rows: rows[rows > 0],
    "write by mask": lambda rows: rows.masked_scatter_(rows > 0, rows[rows > 0]),
    "unique": torch.unique,
    "nonzero": torch.nonzero,
    "numbers of the host": lambda rows: rows + torch.tensor([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("kind", _READS)
def test_work_that_reads_a_value_on_the_host_is_not_recorded(kind: str) -> None:
    rows = torch.tensor([1.0, -2.0, 3.0])

    def work() -> torch.Tensor:
        again = rows.clone()
        _READS[kind](again)
        return again

    with torch.inference_mode(), pytest.raises(RuntimeError, match="that a graph can record"):
        TapeRecorder().record(work)


def test_recording_changes_no_memory_and_each_replay_does() -> None:
    memory, at = torch.zeros(4), torch.tensor([1])
    with torch.inference_mode():

        def work() -> torch.Tensor:
            memory[at] = memory.index_select(0, at) + 1
            return memory.sum()[None]

        repeat = TapeRecorder().record(work)
        assert memory.tolist() == [0, 0, 0, 0]
        first = repeat()
        at.fill_(2)
        assert repeat() is first
        assert memory.tolist() == [0, 1, 1, 0]
        assert first.tolist() == [2]
