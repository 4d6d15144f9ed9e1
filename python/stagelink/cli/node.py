"""`stagelink node`: one rank of a ring, started by hand or by a launcher.

A rank that a launcher started prints no error and no table: it leaves both in the launch's folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from stagelink.cli import outcome, settings
from stagelink.cli.hand_watch import HandWatch
from stagelink.cli.interrupt import Interrupts
from stagelink.cli.progress import ProgressLine
from stagelink.config import Job
from stagelink.launch import life
from stagelink.launch.folder import LaunchFolder
from stagelink.launch.stage_process import ALIVE

if TYPE_CHECKING:
    import argparse

    from stagelink.config import LinkConfig
    from stagelink.node.stage import Stage


def run(arguments: argparse.Namespace) -> int:
    """Run one rank to its end."""
    if arguments.launch_folder is None:
        return _run_by_hand(arguments)
    try:
        return _run_launched(arguments)
    except (SystemExit, KeyboardInterrupt):
        # A second signal, while the first one's end was being written; the launcher says it.
        return life.TERMINATED


def _run_by_hand(arguments: argparse.Namespace) -> int:
    interrupts = Interrupts()
    life.end_on_terminate()
    link, world = settings.link_config(arguments)
    settings.enter_environment(settings.engines(arguments)[0])
    # Before anything imports numpy: its library reads these once.
    os.environ.update(settings.thread_environment(arguments.threads, 1))
    from stagelink.cli.table import stage_table, summary, terminal_width
    from stagelink.node.stage import prepare

    if world > 1:
        from stagelink import _native

        # Before a model is read, which takes minutes, and before another rank is asked to come.
        _native.check_key_file(link.key_file)
    job = Job(settings.model_config(arguments, world), settings.task(arguments))
    watch = HandWatch(job, link, settings.asked_engines(arguments))
    note = settings.engine_note(arguments)
    if note is not None and not job.task.quiet:
        watch.note(note)
    stage = prepare(job.model, link.rank, watch.converting)
    result = _run_rank(stage, job, link, watch, interrupts)
    if job.task.json:
        print(json.dumps(result), flush=True)
    elif not job.task.quiet:
        watch.wipe()
        lines = [stage_table(result.get("stages") or [result], terminal_width(sys.stderr))]
        if "finish_reason" in result:
            lines.append(summary(result))
        print("\n".join(lines), file=sys.stderr, flush=True)
    return 0


def _run_launched(arguments: argparse.Namespace) -> int:
    folder = LaunchFolder(arguments.launch_folder)
    launcher = life.Launcher(int(arguments.life_fd), folder)
    try:
        # A Ctrl-C that was held back so far is raised here; the launcher is the one that says it.
        interrupts = Interrupts()
        life.end_on_terminate()
        link, _ = settings.link_config(arguments)
        from stagelink.node.stage import prepare

        job = Job.read(folder.job_file)
        watch = _LaunchedWatch(int(arguments.address_fd), quiet=job.task.quiet or link.rank > 0)
        watch.say(ALIVE)
        stage = prepare(job.model, link.rank, watch.converting)
        if link.rank > 0:
            link = dataclasses.replace(link, lead=launcher.address(link.join_seconds))
        if job.verify is not None:
            _record(stage, folder)
        if job.verify is not None and link.rank == 0:
            from stagelink.cli.lead import do_verify

            ring = link if stage.world > 1 else None
            result = do_verify(stage, ring, job.verify, watch, folder.logits_file)
        else:
            result = _run_rank(stage, job, link, watch, interrupts)
        if link.rank == 0:
            folder.write_result(result)
        else:
            folder.write_report(link.rank, result)
    except SystemExit:
        return life.TERMINATED
    except (Exception, KeyboardInterrupt) as error:
        # The end has begun: nothing may tear it apart.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if isinstance(error, BrokenPipeError):
            outcome.drop_stdout()
        if os.environ.get("STAGELINK_TRACEBACK") == "1":
            raise
        with contextlib.suppress(FileNotFoundError):
            folder.write_error(arguments.rank, outcome.describe(error), outcome.exit_code(error))
        return outcome.exit_code(error)
    finally:
        if launcher.is_gone:
            # It cannot tidy up any more, and what was just written is for nobody.
            folder.remove()
    return 0


def _run_rank(
    stage: Stage, job: Job, link: LinkConfig, watch: ProgressLine, interrupts: Interrupts
) -> dict[str, Any]:
    """Run a prepared stage's loop; the result of rank 0, or the report of a follower."""
    if link.rank > 0:
        from stagelink.node.run import run_follower

        return run_follower(stage, link, watch).as_json()
    from stagelink.cli.lead import do_task

    return do_task(stage, link if stage.world > 1 else None, job.task, watch, interrupts)


def _record(stage: Stage, folder: LaunchFolder) -> None:
    """Let a prepared stage write its rows into the launch's folder."""
    from stagelink.node.recorder import RecordingEngine

    rows, states = folder.rows_file(stage.rank), folder.states_file(stage.rank)
    stage.engine = RecordingEngine(stage.engine, rows, states)


class _LaunchedWatch(ProgressLine):
    """Tells the launcher rank 0's address."""

    def __init__(self, address_fd: int, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._address_fd = address_fd

    def listening(self, stage: Stage, address: str) -> None:
        """Tell it once the port is known."""
        if stage.rank == 0:
            self.say(address)

    def say(self, text: str) -> None:
        """Write one line to the launcher."""
        life.say(self._address_fd, text)
