"""The launcher's side of `up`, `generate` and `chat`: start the stages, tell how they ended.

It computes nothing: the stages are processes of their own, rank 0 included.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from stagelink.cli import settings
from stagelink.cli.outcome import FAILED
from stagelink.cli.progress import ProgressLine
from stagelink.cli.stages import run_stages
from stagelink.cli.table import stage_table, summary, terminal_width
from stagelink.config import Job, Task
from stagelink.errors import ConfigError
from stagelink.launch import life
from stagelink.launch.local import launch_folder

if TYPE_CHECKING:
    import argparse


def run_local(arguments: argparse.Namespace) -> int:
    """Run one task on a ring of local processes and print what it came to."""
    # Until there are stages to pass it on to: a conversion that is under way is tidied up.
    life.end_on_terminate()
    job = Job(settings.model_config(arguments), settings.task(arguments))
    if job.task.is_chat and (job.task.json or job.task.digest_logits):
        flag = "--json" if job.task.json else "--compare-whole"
        raise ConfigError(
            f"{flag} needs --prompt or --prompt-ids: a chat has many answers", reason="prompt"
        )
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
    with launch_folder() as folder:
        return run_stages(folder, job, arguments, environment)


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
    lines = list(result.get("warnings", ()))
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
