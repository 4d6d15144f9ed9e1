"""Result lines of bench/link.py and bench/peers.py, parsed into figures of one form.

It measures nothing and draws nothing; a line that it does not understand is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE_BYTES_MAX = 16 << 20
OURS = "stagelink"
REFERENCE = "C"
NAMES = {"c": REFERENCE, "socket": "Python socket", "zmq": "ZeroMQ", "mlx": "MLX ring"}


class FigureError(Exception):
    """A result file could not be read; ``reason`` is the stable code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """What makes two figures comparable.

    Attributes:
        size: Bytes of rows.
        name: The contender.
        wait: Its strategy.
        checksum: Whether payloads carry one.
        compute_us: How long each end computes between two hops.
        busy: Whether other processes wanted every core.
    """

    size: int
    name: str
    wait: str
    checksum: bool
    compute_us: int = 0
    busy: bool = False

    @property
    def label(self) -> str:
        """The contender as a reader calls it."""
        wait = "" if self.wait == "own" else f", {self.wait}"
        compute = f", {self.compute_us / 1000:g} ms between" if self.compute_us else ""
        busy = ", busy cores" if self.busy else ""
        return f"{self.name}{wait}{', CRC' if self.checksum else ''}{compute}{busy}"

    @property
    def is_floor(self) -> bool:
        """Whether this is the reference that everything is drawn against: C, spinning."""
        told = (self.name, self.wait, self.checksum, self.compute_us, self.busy)
        return told == (REFERENCE, "spin", False, 0, False)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A median round trip with the extremes of its repeats, microseconds, and its ratio to C.

    With computing between the hops it is what the round trip takes beyond that.

    The ratio is to C of the same wait strategy, and to C spinning where that is ``own``.
    """

    key: Key
    us: float
    us_low: float
    us_high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    runs: int


@dataclasses.dataclass(frozen=True)
class Results:
    """One file: its figures by key, what was skipped and why, and the machines it names."""

    figures: dict[Key, Figure]
    skipped: dict[str, str]
    machines: list[dict[str, Any]]


def read_results(path: Path) -> Results:
    """Every line of ``path``; of two lines for one key the later counts.

    Raises:
        FigureError: it cannot be read, is larger than 16 MiB, or a line is not understood.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise FigureError("file-large", f"{path}: expected at most {FILE_BYTES_MAX} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FigureError("file-unreadable", f"{path}: expected result lines: {error}") from error
    results = Results({}, {}, [])
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            _take(results, json.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            text = f"{path}, line {number}: expected a result line: {error!r}"
            raise FigureError("line-bad", text) from error
    if not results.figures:
        raise FigureError("file-empty", f"{path}: expected at least one figure, found none")
    return results


def _take(results: Results, line: dict[str, Any]) -> None:
    machine = line["machine"]
    if not isinstance(machine, dict):
        raise TypeError(f"machine is {machine!r}, not an object")
    if machine not in results.machines:
        results.machines.append(machine)
    if "skipped" in line:
        results.skipped[NAMES.get(line["peer"], line["peer"])] = str(line["skipped"])
        return
    kinds = {"link": _link_figures, "waits": _wait_figures, "peers": _peer_figures}
    if line["bench"] not in kinds:
        raise ValueError(f"bench {line['bench']!r} is none of {', '.join(kinds)}")
    for figure in kinds[line["bench"]](line):
        results.figures[figure.key] = figure


def _link_figures(line: dict[str, Any]) -> Sequence[Figure]:
    """Two of one line: the link, and the reference that it was measured beside.

    The line holds the extremes of the ratio only; times the reference they are microseconds.
    """
    reference_us = _positive(line, "reference_us")
    low, high = _positive(line, "ratio_low"), _positive(line, "ratio_high")
    wait, checksum = str(line["wait"]), bool(line["checksum"])
    key = Key(_whole(line, "size"), OURS, wait, checksum)
    us, ratio = _positive(line, "link_us"), _positive(line, "ratio")
    runs = _whole(line, "pairs")
    spread = (reference_us * low, reference_us * high)
    ours = Figure(key, us, *_around(us, *spread), ratio, low, high, runs)
    key = Key(key.size, REFERENCE, wait, checksum)
    us = reference_us
    return ours, Figure(key, us, us, us, 1.0, 1.0, 1.0, runs)


def _wait_figures(line: dict[str, Any]) -> Sequence[Figure]:
    """Two of one line; the reference of a strategy that C lacks is C sleeping."""
    us, c_us = _positive(line, "beyond_us"), _positive(line, "reference_us")
    low, high = _around(us, _positive(line, "beyond_us_low"), _positive(line, "beyond_us_high"))
    runs, wait, is_busy = _whole(line, "pairs"), str(line["wait"]), bool(line["busy"])
    computed = (bool(line["checksum"]), _whole(line, "compute_us"), is_busy)
    key = Key(_whole(line, "size"), OURS, wait, *computed)
    ours = Figure(key, us, low, high, us / c_us, low / c_us, high / c_us, runs)
    key = Key(key.size, REFERENCE, "spin" if wait == "spin" else "block", *computed)
    return ours, Figure(key, c_us, c_us, c_us, 1.0, 1.0, 1.0, runs)


def _peer_figures(line: dict[str, Any]) -> Sequence[Figure]:
    name = NAMES.get(line["peer"], str(line["peer"]))
    key = Key(_whole(line, "size"), name, str(line["wait"]), bool(line["checksum"]))
    us, ratio = _positive(line, "us"), _positive(line, "ratio")
    spread = _around(us, _positive(line, "us_low"), _positive(line, "us_high"))
    low, high = _positive(line, "ratio_low"), _positive(line, "ratio_high")
    return (Figure(key, us, *spread, ratio, low, high, _whole(line, "pairs")),)


def _around(us: float, low: float, high: float) -> tuple[float, float]:
    """The spread, widened where needed so that it holds the median itself."""
    return min(low, us), max(high, us)


def _positive(line: dict[str, Any], name: str) -> float:
    value = line[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}, not a number")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}, not a positive number")
    return float(value)


def _whole(line: dict[str, Any], name: str) -> int:
    value = line[name]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} is {value!r}, not a positive whole number")
    return value
