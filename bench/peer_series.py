"""Which transports are compared, and the medians of each over interleaved repeats.

It starts processes only through peer_run; it prints and stores nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer_environments import Environment
from peer_run import RUN_SECONDS, Run, RunError, run_pair, run_single
from reference import reference_command

if TYPE_CHECKING:
    from collections.abc import Sequence

REFERENCE = "c"
REFERENCE_WAITS = ("spin", "block")


@dataclasses.dataclass(frozen=True)
class Peer:
    """A transport: its environment, its program and the wait strategies it can be told.

    ``own`` is a strategy that the transport does not let its caller choose; ``module`` must be
    importable here; ``pair`` is false for a program that starts its second end itself.
    """

    environment: Environment
    program: str
    waits: tuple[str, ...]
    module: str | None = None
    pair: bool = True

    def missing(self) -> str | None:
        """Why it cannot run here, or None when it can."""
        if self.module and not _is_importable(self.module):
            return f"{self.module} is not built in this environment; run scripts/setup"
        return self.environment.missing()


@dataclasses.dataclass(frozen=True)
class Task:
    """One size to measure: bytes each way, how often, round trips a run, the cores of both ends."""

    size: int
    repeats: int
    rounds: int
    cores: tuple[int, int]


@dataclasses.dataclass
class Series:
    """One contender's medians, microseconds, one a repeat; ``failed`` says why it has no more."""

    peer: str
    wait: str
    version: str = ""
    medians: list[float] = dataclasses.field(default_factory=list)
    failed: str | None = None


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


BOTH = ("spin", "block")
OWN = ("own",)
PEERS = {
    "stagelink": Peer(
        Environment("stagelink", None),
        "stagelink_hop.py",
        BOTH,
        module="stagelink._native",
        pair=False,
    ),
    "socket": Peer(Environment("socket", None), "plain_socket.py", BOTH),
    "zmq": Peer(Environment("zmq", "pyzmq"), "zmq_pair.py", OWN),
    "mlx": Peer(Environment("mlx", "mlx[cpu]"), "mlx_ring.py", OWN),
    "gloo": Peer(Environment("gloo", "torch"), "gloo.py", OWN),
}


def measure(names: Sequence[str], task: Task, program: Path) -> list[Series]:
    """All contenders in turn, the order turned round at every repeat; the reference comes first.

    ``program`` is the compiled reference. A peer that fails ends its own series only.
    """
    series = [Series(REFERENCE, wait) for wait in REFERENCE_WAITS]
    series += [Series(name, wait) for name in names for wait in PEERS[name].waits]
    for index in range(task.repeats):
        for one in series if index % 2 == 0 else reversed(series):
            if one.failed is None:
                _run_once(one, task, program)
    return series


def _run_once(one: Series, task: Task, program: Path) -> None:
    run = Run(one.wait, task.size, task.rounds, task.cores)
    if one.peer == REFERENCE:
        one.medians.append(_run_reference(program, run))
        return
    peer = PEERS[one.peer]
    start = run_pair if peer.pair else run_single
    try:
        with tempfile.TemporaryDirectory() as name:
            one.version, median = start(peer.environment.python, peer.program, run, Path(name))
    except RunError as error:
        one.failed = str(error)
        print(f"{one.peer}: {error}", file=sys.stderr)
        return
    one.medians.append(median)


def _run_reference(program: Path, run: Run) -> float:
    command = reference_command(program, run.wait, run.size, run.rounds, run.cores)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=RUN_SECONDS)
    return statistics.median(float(line) for line in done.stdout.split())


def to_link(one: Series, link: Series | None) -> dict[str, Any]:
    """How many times the spinning link's round trip: the median of the repeats' ratios.

    Nothing where the link was not measured beside it.
    """
    if link is None or link.failed is not None or one is link:
        return {}
    pairs = zip(one.medians, link.medians, strict=True)
    return {"ratio_link": round(statistics.median(mine / ours for mine, ours in pairs), 3)}


def result(
    one: Series, reference: dict[str, Series], task: Task, link: Series | None = None
) -> dict[str, Any]:
    """One contender's figures, in the form of bench/link.py's lines.

    ``ratio`` is to the C run of the same wait strategy, and of ``spin`` where that is ``own``;
    ``ratio_spin`` and ``ratio_block`` are to each of the two. ``ratio_low`` and ``ratio_high``
    are the extremes of the repeats. ``ratio_link`` is to ``link``, the link while it spins.
    """
    line: dict[str, Any] = {"bench": "peers", "peer": one.peer, "size": task.size}
    line["wait"] = one.wait
    if one.failed is not None:
        return line | {"skipped": one.failed}
    against = one.wait if one.wait in reference else "spin"
    pairs = zip(one.medians, reference[against].medians, strict=True)
    ratios = sorted(mine / theirs for mine, theirs in pairs)
    us = statistics.median(one.medians)
    reference_us = {wait: statistics.median(c.medians) for wait, c in reference.items()}
    return line | {
        "version": one.version,
        "checksum": False,
        "rounds": task.rounds,
        "pairs": len(ratios),
        "us": round(us, 2),
        "us_low": round(min(one.medians), 2),
        "us_high": round(max(one.medians), 2),
        "reference_wait": against,
        "reference_us": round(reference_us[against], 2),
        "ratio": round(us / reference_us[against], 3),
        "ratio_low": round(ratios[0], 3),
        "ratio_high": round(ratios[-1], 3),
        "ratio_spin": round(us / reference_us["spin"], 3),
        "ratio_block": round(us / reference_us["block"], 3),
        **to_link(one, link),
    }
