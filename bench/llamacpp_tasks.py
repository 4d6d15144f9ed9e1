"""What every contender of bench/llamacpp.py is asked to do, and how it answers: lines of JSON.

It measures nothing itself and knows no engine.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The shapes of every contender: positions a stream, streams, and ids that every vocabulary has.
CONTEXT, STREAMS, VOCAB = 1024, 4, 4000


@dataclasses.dataclass(frozen=True)
class Task:
    """A prompt of ``rows`` ids for each of ``streams``, then ``steps`` rounds of one row each."""

    streams: int
    rows: int
    steps: int
    seed: int

    def figures(self, prompt_seconds: float, steps: Sequence[float]) -> dict[str, float]:
        """Rows a second of the prompts; milliseconds of the median step and of the fastest tenth.

        The tenth is the slowest of the fastest: what other work on the machine disturbed least.
        """
        told = {"prompt_rows_s": self.streams * self.rows / prompt_seconds}
        if steps:
            told["step_ms"] = statistics.median(steps) * 1e3
            told["step_ms_tenth"] = sorted(steps)[len(steps) // 10] * 1e3
        return told


def serve(run: Callable[[Task], dict[str, float]]) -> None:
    """Say that this process is ready, then answer a line a task until the input ends."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(Task(**json.loads(line)))), flush=True)
