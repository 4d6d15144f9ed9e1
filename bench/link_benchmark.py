"""The cases of `link` under pytest-benchmark, for who watches one machine over time.

No test collects it; it compares with nothing but its own earlier runs.

    python -m pytest bench/link_benchmark.py --benchmark-autosave
    python -m pytest bench/link_benchmark.py --benchmark-compare
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from busy import compute
from link_ends import BATCH, Case, announce, linked
from stagelink._native import RowsBuffer

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchmark.fixture import BenchmarkFixture

HOPS = [
    Case(size << 10, wait, checksum, rounds=2000)
    for size in (10, 20, 50)
    for wait in ("spin", "adaptive", "block")
    for checksum in (False, True)
]
COMPUTED = [
    Case(20 << 10, wait, checksum=True, rounds=200, compute_us=milliseconds * 1000)
    for milliseconds in (1, 3, 10)
    for wait in ("spin", "adaptive", "block")
]


def _name(case: Case) -> str:
    checksum = "-crc" if case.checksum else ""
    return f"{case.size >> 10}KiB-{case.wait}{checksum}-{case.compute_us // 1000}ms"


@pytest.mark.parametrize("case", HOPS + COMPUTED, ids=_name)
def test_one_hop(case: Case, benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """One ``exchange``, from call to return; the other end's computing is in it."""
    out, back = RowsBuffer(case.size), RowsBuffer(case.size)
    announced: list[int] = []
    begun = 0
    with linked(case, tmp_path) as (ring, _):

        def next_round() -> tuple[tuple[object, ...], dict[str, object]]:
            nonlocal begun
            if not announced:
                count = min(BATCH, case.rounds - begun)
                announced.extend(announce(ring, begun, count))
                begun += count
            if case.compute_us:
                compute(case.compute_us)
            return (announced.pop(0), out, back), {}

        benchmark.pedantic(ring.exchange, setup=next_round, rounds=case.rounds, iterations=1)
    benchmark.extra_info["case"] = _name(case)
