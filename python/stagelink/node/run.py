"""One rank from its settings to its end: join, load, loop, report.

The order is that of docs/protocol.md 5; what happens in a round is in `lead` and `follow`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from stagelink.errors import DeadlineError
from stagelink.node.alone import AloneRing
from stagelink.node.follow import follow
from stagelink.node.lead import Lead
from stagelink.node.placement_id import placement_id
from stagelink.node.report import StageReport
from stagelink.node.rows import BoundaryRows
from stagelink.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagelink.config import LinkConfig
    from stagelink.node.stage import Stage
    from stagelink.node.watch import Watch


@dataclasses.dataclass(slots=True)
class RunningLead:
    """Rank 0 of an open ring."""

    lead: Lead
    stage: Stage
    ring: Ring | AloneRing

    @property
    def placement_id(self) -> str:
        """Names this placement and what every stage computes with, for people."""
        if isinstance(self.ring, AloneRing):
            computes = [self.stage.computes]
        else:
            names = ("backend", "device", "kv_dtype", "batch_invariant")
            computes = [tuple(one[name] for name in names) for one in self.ring.members]
        return placement_id(self.stage.fingerprint, computes)

    def reports(self) -> list[StageReport]:
        """Return what rank 0 knows of every stage; of followers' own loops only after `end`."""
        own = self.stage.report().measured(self.lead.times, self.ring.figures())
        if isinstance(self.ring, AloneRing):
            return [own]
        readies = {one["rank"]: one for one in self.ring.readies}
        loops = self.ring.told_figures
        told = [one for one in self.ring.members if one["rank"]]
        return [
            own,
            *(_told(one, readies.get(one["rank"], {}), loops.get(one["rank"])) for one in told),
        ]

    def end(self) -> None:
        """End the ring in order; only then do the followers say what their loops came to."""
        if not isinstance(self.ring, AloneRing):
            self.ring.close()


@contextlib.contextmanager
def run_lead(
    stage: Stage,
    link: LinkConfig | None,
    watch: Watch,
    *,
    decode: Callable[[Sequence[int]], str],
    digest_logits: bool = False,
) -> Iterator[RunningLead]:
    """Bring rank 0 up, hand it out, and end the ring with the block.

    Args:
        stage: Prepared; loaded here.
        link: Where to listen; ``None`` for a ring of one stage.
        watch: Hears how far it has come.
        decode: Turns token ids into text.
        digest_logits: Keep a digest of the logits of every token.
    """
    rows = BoundaryRows(stage.described, stage.settings.rows_max)
    with contextlib.ExitStack() as stack:
        stack.callback(stage.engine.close)
        ring: Ring | AloneRing
        if link is None:
            ring = AloneRing(planes=rows.planes, plane_row_bytes=rows.plane_row_bytes)
            stage.load(watch.loading, None, 0.0)
        else:
            ring = stack.enter_context(_join(stage, link, watch))
            _load(stage, ring, link, watch)
        watch.running()
        lead = Lead(
            stage.engine,
            ring,
            rows,
            stage.settings,
            vocab=stage.family.vocab,
            decode=decode,
            busy_seconds=0.0 if link is None else link.busy_seconds,
            digest_logits=digest_logits,
            needs_token_ids=stage.family.needs_token_ids,
        )
        yield RunningLead(lead, stage, ring)


def run_follower(stage: Stage, link: LinkConfig, watch: Watch) -> StageReport:
    """Join, load, follow until rank 0's bye, and return this stage's figures."""
    rows = BoundaryRows(stage.described, stage.settings.rows_max)
    with contextlib.ExitStack() as stack:
        stack.callback(stage.engine.close)
        ring = stack.enter_context(_join(stage, link, watch))
        _load(stage, ring, link, watch)
        watch.running()
        times = follow(
            stage.engine,
            ring,
            rows,
            is_last=stage.rank == stage.world - 1,
            busy_seconds=link.busy_seconds,
        )
        report = stage.report().measured(times, ring.figures())
        ring.tell_figures(report.loop_figures())
        return report


def _join(stage: Stage, link: LinkConfig, watch: Watch) -> Ring:
    from stagelink._native import Listener  # noqa: PLC0415 (a ring of one never gets here)

    listener = Listener(link.listen)
    watch.listening(stage, listener.address)
    try:
        ring = Ring.join(link, listener, stage.description(), stage.fingerprint.digests)
    except DeadlineError as error:
        commands = watch.commands(stage, listener.address)
        rank = error.rank
        if commands and rank and error.reason == "never_joined":
            # The one of the rank that is missing; its place in the list is one less.
            wanted = commands[rank - 1]
            error.args = (f"{error}; if rank {rank} does not run, start it with: {wanted}",)
        raise
    if ring.strangers:
        watch.turned_away(ring.strangers)
    return ring


def _load(stage: Stage, ring: Ring, link: LinkConfig, watch: Watch) -> None:
    stage.load(watch.loading, ring, link.busy_seconds)
    ring.ready(
        load_ms=stage.load_ms,
        bytes_held=stage.described.weight_bytes,
        bytes_read=stage.checkpoint.bytes_read,
        seconds=link.ready_seconds,
    )


def _told(member: dict[str, Any], ready: dict[str, int], loop: Sequence[int] | None) -> StageReport:
    """What a follower told rank 0 at boot, and at the end of its loop."""
    report = StageReport(
        rank=member["rank"],
        host=member["host"],
        pid=member.get("process") or None,
        first=member["first"],
        end=member["end"],
        engine=member.get("backend"),
        device=member.get("device"),
        tensor_bytes_held=ready.get("bytes_held"),
        tensor_bytes_read=ready.get("bytes_read"),
        load_ms=ready.get("load_ms"),
    )
    return report if loop is None else report.with_loop(loop)
