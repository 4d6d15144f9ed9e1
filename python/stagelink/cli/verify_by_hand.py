"""Rank 0 of a verification whose other ranks are `stagelink node`, on any machine.

Only what rank 0 sees is written down: its own rows, and those that come back to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.cli import settings
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from stagelink.config import Job, LinkConfig
    from stagelink.launch.folder import LaunchFolder
    from stagelink.verify.scenario import Wanted


def place(arguments: argparse.Namespace) -> tuple[LinkConfig | None, int | None]:
    """Return rank 0's link and the world of a ring by hand; nothing for one that is launched.

    Raises:
        ConfigError: ``rank`` where this is not rank 0, ``world`` where there is no other rank;
            ``world`` or ``key_file`` where they are given for a ring that is launched.
    """
    if arguments.rank is None:
        for flag, value in (("--world", arguments.world), ("--key-file", arguments.key_file)):
            if value is not None:
                raise ConfigError(
                    f"{flag} is {value}, but --rank 0 is missing: give it for a ring whose other "
                    f"ranks run stagelink node, or --stages and no {flag} for one on this machine",
                    reason=flag.removeprefix("--").replace("-", "_"),
                )
        return None, None
    if arguments.rank != 0:
        raise ConfigError(
            f"--rank is {arguments.rank}: a verification is rank 0's; the others run stagelink "
            "node",
            reason="rank",
        )
    link, world = settings.link_config(arguments)
    if world < 2:
        raise ConfigError(
            "--world is 1: expected at least 2; leave --rank out to verify a ring of one",
            reason="world",
        )
    return link, world


def run_by_hand(
    folder: LaunchFolder, job: Job, wanted: Wanted, link: LinkConfig, engines: Sequence[str] = ()
) -> dict[str, Any]:
    """Join the ring, run the rounds and end it; the result is that of a launched rank 0.

    ``engines``: those that somebody asked for, one a rank or one for all.
    """
    # They import what reads the environment that the command sets first.
    from stagelink.cli.hand_watch import HandWatch
    from stagelink.cli.lead import do_verify
    from stagelink.node.recorder import RecordingEngine
    from stagelink.node.stage import prepare

    watch = HandWatch(job, link, engines)
    stage = prepare(job.model, 0, watch.converting)
    stage.engine = RecordingEngine(
        stage.engine, folder.rows_file(0), folder.states_file(0), returned=folder.rows_file(1)
    )
    try:
        return do_verify(stage, link, wanted, watch, folder.logits_file)
    finally:
        watch.wipe()
