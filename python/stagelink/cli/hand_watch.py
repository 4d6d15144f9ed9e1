"""What a rank that a person started says while its ring comes together.

It tells rank 0's person how to start the others; it starts nothing.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from stagelink.cli import settings
from stagelink.cli.progress import ProgressLine
from stagelink.config import CHUNK_ROWS_DEFAULT, SUITES
from stagelink.placement.ranges import format_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.config import Job, LinkConfig
    from stagelink.node.stage import Stage


class HandWatch(ProgressLine):
    """Says where a rank listens and what the others must be started with."""

    def __init__(self, job: Job, link: LinkConfig, engines: Sequence[str] = ()) -> None:
        """Take what the rank was started with.

        ``engines``: those that somebody asked for, one a rank or one for all.
        """
        super().__init__(quiet=job.task.quiet)
        self._job = job
        self._link = link
        self._engines = engines

    def listening(self, stage: Stage, address: str) -> None:
        """Say it, unless quiet."""
        if self._job.task.quiet:
            return
        first, end = stage.ranges[stage.rank]
        place = f"rank {stage.rank} of {stage.world}, layers {first}-{end}, listening on {address}"
        if stage.rank > 0:
            self.note(f"{place}; joining rank 0 at {self._link.lead}")
            return
        self.note(f"{place}; waiting {self._link.join_seconds:g} s for the other ranks:")
        for command in self.commands(stage, address):
            self.note(f"  {command}")

    def commands(self, stage: Stage, address: str) -> list[str]:
        """Return the line for each other rank, where this is rank 0."""
        if stage.rank > 0:
            return []
        return [
            f"stagelink node {shlex.quote(self._job.model.model)} --rank {rank} "
            f"--world {stage.world} --lead {address}{_listen(address)} "
            f"--key-file {shlex.quote(self._link.key_file)}{self._engine(rank)}{self._shared()}"
            f"{self._seal()}"
            for rank in range(1, stage.world)
        ]

    def _engine(self, rank: int) -> str:
        """The engine that was asked for, so that the other rank does not choose its own best."""
        if not self._engines:
            return ""
        name = self._engines[0 if len(self._engines) == 1 else rank]
        return f" --engine {shlex.quote(name)}"

    def _shared(self) -> str:
        """The flags that every rank must be given alike, where this one was given them."""
        model = self._job.model
        flags: dict[str, tuple[object, object]] = {
            "--layers": (model.ranges and format_ranges(model.ranges), None),
            "--context": (model.context, None),
            "--chunk-rows": (model.chunk_rows, CHUNK_ROWS_DEFAULT),
            "--streams-max": (model.streams_max, 1),
            "--dtype": (model.dtype, "float32"),
        }
        given = {flag: value for flag, (value, usual) in flags.items() if value != usual}
        # Each rank's own, but the ring's answers keep the promise only where all ranks do.
        promise = " --batch-invariant" if model.batch_invariant else ""
        return "".join(f" {flag} {value}" for flag, value in given.items()) + promise

    def _seal(self) -> str:
        """The flag that the others need too, if this rank is sealed."""
        words = [word for word, suite in SUITES.items() if suite == self._link.suite]
        return "".join(f" --seal {word}" for word in words)


def _listen(lead: str) -> str:
    """A place for the other machine's own address; on this one alone none is needed."""
    host, _ = settings.split_host(lead)
    return "" if settings.is_loopback(host) else " --listen HOST:0"
