"""Rank 0 of a verification whose other ranks are `stagelink node`, on any machine.

Only what rank 0 sees is written down: its own rows, and those that come back to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.cli.hand_watch import HandWatch
from stagelink.cli.lead import do_verify
from stagelink.errors import ConfigError
from stagelink.node.recorder import RecordingEngine
from stagelink.node.stage import prepare

if TYPE_CHECKING:
    from stagelink.config import Job, LinkConfig
    from stagelink.launch.folder import LaunchFolder


def run_by_hand(folder: LaunchFolder, job: Job, link: LinkConfig) -> dict[str, Any]:
    """Join the ring, run the rounds and end it; the result is that of a launched rank 0.

    Raises:
        ConfigError: ``rank`` where this is not rank 0, ``world`` where there is no other rank.
    """
    if link.rank != 0 or job.verify is None:
        raise ConfigError(
            f"--rank is {link.rank}: a verification is rank 0's; the others run stagelink node",
            reason="rank",
        )
    if job.model.world < 2:
        raise ConfigError(
            "--world is 1: expected at least 2; leave --rank out to verify a ring of one",
            reason="world",
        )
    watch = HandWatch(job, link)
    stage = prepare(job.model, 0, watch.converting)
    stage.engine = RecordingEngine(
        stage.engine, folder.rows_file(0), folder.states_file(0), returned=folder.rows_file(1)
    )
    try:
        return do_verify(stage, link, job.verify, watch, folder.logits_file)
    finally:
        watch.wipe()
