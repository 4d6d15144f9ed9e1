"""What is compared with what: a plain hop with C, and the wait strategies with each other and C.

It prints nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import subprocess
from typing import TYPE_CHECKING, Any

from busy import busy
from link_ends import Case, Run, run_link
from reference import cores, reference_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

WAITS = ("spin", "adaptive", "block")
SECONDS_MAX = 300
SEALED = "aes-128-gcm"


def run_reference(program: Path, case: Case, connections: int = 1) -> list[float]:
    """Round trips of the C ping-pong, microseconds; ``connections`` 2 is one each way."""
    command = reference_command(
        program,
        case.wait,
        case.size,
        case.rounds,
        cores(),
        checksum=case.checksum,
        compute_us=case.compute_us,
        connections=connections,
    )
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS_MAX)
    return [float(line) for line in done.stdout.split()]


def in_turn(runs: Sequence[Callable[[], None]], repeats: int) -> None:
    """Call each of ``runs``, ``repeats`` times, every second time in the other order."""
    for index in range(repeats):
        for run in runs if index % 2 == 0 else list(reversed(runs)):
            run()


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The median, the lowest and the highest of the pairs' ratios.

    A pair was measured one right after the other: a machine that is twice as slow for a while makes
    both slower, where the ratio of two medians may set a slow while of one beside a fast of the
    other.
    """
    pairs = [one / other for one, other in zip(ours, theirs, strict=True)]
    return statistics.median(pairs), min(pairs), max(pairs)


def measure_hop(case: Case, pairs: int, program: Path, folder: Path) -> dict[str, Any]:
    """The link and the reference: medians of each run and the ratio of every pair.

    The reference also runs with a connection each way, which is what a ring of two has. Beside a
    checksummed link the same link sealed is measured in the same turns.
    """
    link: list[float] = []
    reference: list[float] = []
    two_ways: list[float] = []
    sealed: list[float] = []
    of_sealed = dataclasses.replace(case, suite=SEALED)
    runs = [
        lambda: reference.append(statistics.median(run_reference(program, case))),
        lambda: link.append(statistics.median(run_link(case, folder).times_us)),
        lambda: two_ways.append(statistics.median(run_reference(program, case, connections=2))),
    ]
    if case.checksum:
        runs.append(lambda: sealed.append(statistics.median(run_link(of_sealed, folder).times_us)))
    in_turn(runs, pairs)
    ratio, low, high = ratio_of(link, reference)
    return {
        "bench": "link",
        **dataclasses.asdict(case),
        "pairs": pairs,
        "link_us": round(statistics.median(link), 2),
        "reference_us": round(statistics.median(reference), 2),
        "ratio": round(ratio, 3),
        "ratio_low": round(low, 3),
        "ratio_high": round(high, 3),
        "two_ways_us": round(statistics.median(two_ways), 2),
        "two_ways_ratio": round(ratio_of(link, two_ways)[0], 3),
        **sealed_figures(sealed, link),
    }


def sealed_figures(sealed: Sequence[float], link: Sequence[float]) -> dict[str, Any]:
    """The sealed link's median, and how much dearer it is than the checksummed one."""
    if not sealed:
        return {}
    ratio, low, high = ratio_of(sealed, link)
    return {
        "sealed_suite": SEALED,
        "sealed_us": round(statistics.median(sealed), 2),
        "sealed_ratio": round(ratio, 3),
        "sealed_ratio_low": round(low, 3),
        "sealed_ratio_high": round(high, 3),
    }


def measure_waits(
    case: Case, pairs: int, program: Path, folder: Path, *, is_busy: bool
) -> list[dict[str, Any]]:
    """Every strategy in turn, with computing between the hops: what each takes beyond that."""
    cases = {wait: dataclasses.replace(case, wait=wait) for wait in WAITS}
    runs: dict[str, list[Run]] = {wait: [] for wait in WAITS}
    reference: dict[str, list[float]] = {wait: [] for wait in WAITS}

    def link_once(wait: str) -> Callable[[], None]:
        return lambda: runs[wait].append(run_link(cases[wait], folder))

    def reference_once(wait: str) -> Callable[[], None]:
        taken = reference[wait]
        return lambda: taken.append(statistics.median(run_reference(program, cases[wait])))

    turns = [link_once(wait) for wait in WAITS]
    with busy(os.cpu_count() or 1) if is_busy else contextlib.nullcontext():
        in_turn(turns + [reference_once(wait) for wait in reference], pairs)
    beyond = {wait: [statistics.median(run.times_us) for run in runs[wait]] for wait in WAITS}
    whole = {wait: [statistics.fmean(run.trips_us) for run in runs[wait]] for wait in WAITS}
    c_us = {wait: statistics.median(taken) for wait, taken in reference.items()}
    results = []
    for wait in WAITS:
        to_spin, to_block = (ratio_of(beyond[wait], beyond[other]) for other in ("spin", "block"))
        whole_to_block = ratio_of(whole[wait], whole["block"])
        results.append(
            {
                "bench": "waits",
                **dataclasses.asdict(cases[wait]),
                "busy": is_busy,
                "pairs": pairs,
                "beyond_us": round(statistics.median(beyond[wait]), 2),
                "beyond_us_low": round(min(beyond[wait]), 2),
                "beyond_us_high": round(max(beyond[wait]), 2),
                "ratio_spin": round(to_spin[0], 3),
                "ratio_block": round(to_block[0], 3),
                "mean_us": round(statistics.median(whole[wait]), 2),
                "mean_ratio_block": round(whole_to_block[0], 3),
                "burnt": round(statistics.median(run.burnt for run in runs[wait]), 3),
                "reference_us": round(c_us[wait], 2),
                "waits": runs[wait][-1].waits,
            }
        )
    return results
