"""Words of two ranks on one link, as a healthy wire between two machines gives them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from stagelink.probe.terms import Link
from stagelink.probe.whole import Measured
from stagelink.probe.word import Bandwidth, End, Machine, RoundTrip, Word

Make = Callable[..., Measured]


def _word(rank: int) -> Word:
    machine = Machine(rank, f"host{rank}", "Linux", "6.1", "x86_64", 8, 0.5, "spin")
    end = End(
        rank,
        f"10.0.0.{rank + 1}",
        "eth0",
        "network",
        1500,
        1000,
        "full",
        False,
        1448,
        1500,
        "cubic",
    )
    return Word(machine, end)


@pytest.fixture
def make() -> Make:
    """``make(start={...}, end={...}, p50_us=..., forward=..., back=...)``; fields of both ends."""

    def measured(
        start: dict[str, Any] | None = None,
        end: dict[str, Any] | None = None,
        p50_us: float = 120.0,
        forward: float = 117.0,
        back: float = 117.0,
    ) -> Measured:
        def rate(value: float) -> Bandwidth:
            return Bandwidth(value, value, value, 5, 8 << 20)

        words = []
        for rank, changes in enumerate((start, end)):
            word = _word(rank)
            assert word.end is not None
            words.append(
                dataclasses.replace(word, end=dataclasses.replace(word.end, **changes or {}))
            )
        times = RoundTrip(p50_us, 2 * p50_us, p50_us / 2, 200, 256)
        first = dataclasses.replace(
            words[0], round_trip=times, forward=rate(forward), both=rate(min(forward, back))
        )
        return Measured(Link(0, 1), first, dataclasses.replace(words[1], back=rate(back)))

    return measured
