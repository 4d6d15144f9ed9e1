"""The launcher's side of `up`, `generate` and `chat`: start the stages, tell how they ended.

It computes nothing: the stages are processes of their own, rank 0 included.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from stagelink.cli import settings
from stagelink.cli.keygen import write_key
from stagelink.cli.outcome import FAILED, INTERRUPTED, StageEndedError
from stagelink.cli.progress import ProgressLine
from stagelink.cli.table import stage_table, summary, terminal_width
from stagelink.config import Job, ModelConfig, Task
from stagelink.errors import ConfigError
from stagelink.launch import life
from stagelink.launch.local import Ending, LocalLaunch, launch_folder

if TYPE_CHECKING:
    import argparse

    from stagelink.launch.folder import LaunchFolder


# What a native library said before it gave up, and the stack that Python adds.
STDERR_LINES_MAX = 40


def run_local(arguments: argparse.Namespace) -> int:
    """Run one task on a ring of local processes and print what it came to."""
    # Until there are stages to pass it on to: a conversion that is under way is tidied up.
    life.end_on_terminate()
    job = Job(settings.model_config(arguments), settings.task(arguments))
    if job.task.digest_logits and len(set(job.model.engines)) > 1:
        raise ConfigError(
            "--compare-whole compares bytes, and a ring of unlike engines promises closeness: "
            "use stagelink verify",
            reason="compare_whole",
        )
    note = settings.engine_note(arguments)
    if note is not None and not job.task.quiet:
        print(note, file=sys.stderr, flush=True)
    # Refused here, once, and not by every stage.
    settings.waits(arguments)
    environment = settings.thread_environment(arguments.threads, job.model.world)
    job = _checked(job, environment)
    result = _launch(job, arguments, environment)
    if getattr(arguments, "compare_whole", False):
        result["exactness"] = _compare_whole(job, arguments, environment, result)
    _show(job.task, result)
    return FAILED if result.get("exactness", {}).get("equal") is False else 0


def _checked(job: Job, environment: dict[str, str]) -> Job:
    """Refuse what the checkpoint's metadata can refuse, and convert a GGUF once for all stages."""
    # The numeric library reads these when the next line imports it.
    os.environ.update(environment)
    from stagelink.node.stage import check_model

    watch = ProgressLine(quiet=job.task.quiet)
    ranges = check_model(job.model, watch.converting)
    watch.wipe()
    return dataclasses.replace(job, model=dataclasses.replace(job.model, ranges=ranges))


def _launch(job: Job, arguments: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    """Start the stages, wait for their end, and return the result with every stage's figures."""
    with launch_folder() as folder:
        write_key(folder.key_file)
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
            environment=environment,
        )
        with launch:
            ending = launch.wait()
            words = {rank: launch.last_words(rank) for rank in ending.codes}
        result = folder.read_result()
        if result is None or any(ending.codes.values()):
            raise _asked_to_end(launch.signal, ending) or _culprit(folder, ending, words, job.model)
        for rank in range(1, job.model.world):
            result["stages"][rank].update(folder.read_report(rank) or {})
    return result


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
                return _told(rank, error, words)
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


def _told(rank: int, error: dict[str, Any], words: dict[int, str]) -> StageEndedError:
    """Return a stage's own word, with its rank where the word does not name one."""
    message = error["message"]
    if rank > 0 and not message.startswith("rank "):
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


def _compare_whole(
    job: Job, arguments: argparse.Namespace, environment: dict[str, str], split: dict[str, Any]
) -> dict[str, Any]:
    """Answer the same prompt with the whole model in one process; compare logits byte for byte."""
    model = dataclasses.replace(job.model, world=1, ranges=None, devices=job.model.devices[:1])
    task = dataclasses.replace(
        job.task,
        json=True,
        quiet=True,
        prompt=None,
        prompt_ids=tuple(split["prompt_token_ids"]),
    )
    whole = _launch(Job(model, task), arguments, environment)
    ours, theirs = split["logits_sha256"], whole["logits_sha256"]
    pairs = zip(ours, theirs, strict=False)
    differs = [index for index, (one, other) in enumerate(pairs) if one != other]
    equal = ours == theirs and split["token_ids"] == whole["token_ids"]
    return {
        "equal": equal,
        "tokens": len(ours),
        "first_difference": differs[0] if differs else None,
    }


def _show(task: Task, result: dict[str, Any]) -> None:
    if task.json:
        print(json.dumps(result), flush=True)
        return
    lines = []
    if not task.quiet:
        lines.append(stage_table(result["stages"], terminal_width(sys.stderr)))
        if "finish_reason" in result:
            lines.append(summary(result))
    if "exactness" in result:
        lines.append(_exactness(result["exactness"], len(result["stages"])))
    print("\n".join(lines), file=sys.stderr, flush=True) if lines else None


def _exactness(found: dict[str, Any], stages: int) -> str:
    what = f"exactness: {found['tokens']} rows of logits, {stages} stages against the whole model"
    if found["equal"]:
        return f"{what} in one process: equal byte for byte"
    return f"{what} in one process: they differ from row {found['first_difference']} on"
