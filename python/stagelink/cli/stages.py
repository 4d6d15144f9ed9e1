"""Starts the stages of a job, waits for their end, and names what went wrong where it did.

It prints nothing; `local` and `verify` say what the stages came to.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from stagelink.cli import settings
from stagelink.cli.keygen import write_key
from stagelink.cli.outcome import FAILED, INTERRUPTED, StageEndedError
from stagelink.engine_registry import engine_environment
from stagelink.launch import life
from stagelink.launch.local import Ending, LocalLaunch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from stagelink.config import Job, ModelConfig
    from stagelink.launch.folder import LaunchFolder


# What a native library said before it gave up, and the stack that Python adds.
STDERR_LINES_MAX = 40
# How a line begins that a person should see though the stage goes on.
WARNING = "warning: "


def run_stages(
    folder: LaunchFolder, job: Job, arguments: argparse.Namespace, environment: dict[str, str]
) -> dict[str, Any]:
    """Start the stages, wait for their end, and return the result with every stage's figures.

    Followers' warnings are in ``warnings``, if there are any; rank 0's stderr is the terminal's.
    """
    write_key(folder.key_file)
    names = [job.model.engine_of(rank) for rank in range(job.model.world)]
    base = {**settings.outer_environment(), **environment}
    needed = {name: engine_environment(name, base) for name in set(names)}
    launch = LocalLaunch(
        folder,
        job,
        flags={
            "--join-seconds": str(arguments.join_seconds),
            "--ready-seconds": str(arguments.ready_seconds),
            "--busy-seconds": str(arguments.busy_seconds),
            "--wait": arguments.wait,
            **({"--seal": arguments.seal} if arguments.seal else {}),
        },
        listen=settings.split_host(arguments.listen),
        environments=[{**base, **needed[name]} for name in names],
    )
    with launch:
        ending = launch.wait()
        words = {rank: launch.last_words(rank) for rank in ending.codes}
    result = folder.read_result()
    if result is None or any(ending.codes.values()):
        raise _asked_to_end(launch.signal, ending) or _culprit(folder, ending, words, job.model)
    for rank in range(1, job.model.world):
        result["stages"][rank].update(folder.read_report(rank) or {})
    warnings = follower_warnings(words)
    return result | ({"warnings": warnings} if warnings else {})


def follower_warnings(words: Mapping[int, str]) -> list[str]:
    """Return the lines of followers' stderr that are warnings, each with its rank."""
    return [
        f"rank {rank}: {line}"
        for rank in sorted(words)
        if rank > 0
        for line in _last_lines(words[rank])
        if line.startswith(WARNING)
    ]


def _asked_to_end(number: int | None, ending: Ending) -> BaseException | None:
    """Return the end that a person asked for; ``None`` where it came by itself."""
    was_ended = number == signal.SIGINT and 0 in ending.ended_by_us
    if was_ended or ending.codes[0] in (INTERRUPTED, -signal.SIGINT):
        return KeyboardInterrupt()
    if number is None or number == signal.SIGINT:
        return None
    name = signal.Signals(number).name
    return StageEndedError(f"ended by {name}", reason="interrupted", rank=None, code=128 + number)


def _culprit(
    folder: LaunchFolder, ending: Ending, words: dict[int, str], model: ModelConfig
) -> StageEndedError:
    """Name what went wrong once.

    A stage that was killed, or left without a word, comes first: the others only saw it vanish.
    Then rank 0's word for it, which is the ring's; then that of the stage that ended first.
    """
    failed = [rank for rank in ending.order if ending.codes[rank]]
    failed = [rank for rank in failed if rank not in ending.ended_by_us]
    silent = [rank for rank in failed if folder.read_error(rank) is None]
    killed = [rank for rank in silent if ending.codes[rank] != life.TERMINATED]
    if not killed:
        for rank in sorted(failed, key=bool):
            error = folder.read_error(rank)
            if error is not None:
                return _told(rank, error, words, model)
    rank = (killed or failed or [0])[0]
    lines = _last_lines(words[rank])
    text = _how_it_ended(ending.codes[rank])
    if ending.codes[rank] > 0 and lines:
        # The end of a traceback says what it was; the lines before it say where.
        text = f"{text}: {lines.pop().strip()}"
    layers = "" if model.ranges is None else " (layers {}-{})".format(*model.ranges[rank])
    return StageEndedError(
        f"rank {rank}{layers}: {text}", reason="stage_ended", rank=rank, code=FAILED, stderr=lines
    )


def _told(
    rank: int, error: dict[str, Any], words: dict[int, str], model: ModelConfig
) -> StageEndedError:
    """Return a stage's own word, with its rank where the word does not name one.

    Rank 0's is the ring's as a rule; what its engine says is of rank 0 alone.
    """
    message = error["message"]
    is_own = rank > 0 or (model.world > 1 and message.startswith(f"{model.engine_of(0)} engine"))
    if is_own and not message.startswith("rank "):
        message = f"rank {rank}: {message}"
    culprit = rank if error["rank"] is None and rank > 0 else error["rank"]
    return StageEndedError(
        message,
        reason=error["reason"],
        rank=culprit,
        code=error["code"],
        stderr=_last_lines(words.get(culprit, "")),
    )


def _last_lines(words: str) -> list[str]:
    """Return the end of what a stage wrote, fit for a terminal."""
    lines = [
        "".join(letter for letter in line if letter.isprintable()) for line in words.split("\n")
    ]
    return [line.rstrip() for line in lines if line.strip()][-STDERR_LINES_MAX:]


def _how_it_ended(code: int) -> str:
    """Say how a stage ended that could not say so itself."""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL; the system does that to a process when memory runs out"
    if code in (life.TERMINATED, -signal.SIGTERM):
        return "ended by SIGTERM"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
