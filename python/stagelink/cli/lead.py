"""Rank 0's part of every command: bring the ring up, do the task, say what it came to.

It returns plain values; who prints the table or the JSON decides the caller.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from stagelink.cli.conversation import Conversation
from stagelink.errors import ConfigError
from stagelink.node.answer import answer, limits_of
from stagelink.node.prompt import check_chat, task_prompt
from stagelink.node.run import run_lead
from stagelink.request.admission import check_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagelink.cli.interrupt import Interrupts
    from stagelink.config import LinkConfig, Task
    from stagelink.node.run import RunningLead
    from stagelink.node.stage import Stage
    from stagelink.node.watch import Watch
    from stagelink.verify.scenario import Wanted


def do_task(
    stage: Stage, link: LinkConfig | None, task: Task, watch: Watch, interrupts: Interrupts
) -> dict[str, Any]:
    """Answer the prompt or chat, and return the result that `--json` prints.

    Raises:
        KeyboardInterrupt: After the ring was ended in order.
        ConfigError: The prompt cannot be run; nothing was sent.
    """
    began = time.perf_counter()
    if task.is_chat and task.json:
        raise ConfigError("--json needs --prompt or --prompt-ids", reason="prompt")
    prompt: list[int] = []
    if task.is_chat:
        check_chat(stage.checkpoint)
    else:
        prompt = task_prompt(stage.checkpoint, task)
        check_prompt(prompt, vocab=stage.family.vocab, context=stage.settings.context)
        # No other text comes: what encodes would lie beside the weights.
        stage.checkpoint.release_encoder()
    with run_lead(
        stage, link, watch, decode=_decoder(stage), digest_logits=task.digest_logits
    ) as running:
        load_ms = round((time.perf_counter() - began) * 1e3)
        if task.is_chat:
            conversation = Conversation(running, task, interrupts)
            interrupted = conversation.run()
            result: dict[str, Any] = {"answers": [one.as_json() for one in conversation.answers]}
        else:
            result = _generate(running, task, prompt, interrupts)
            interrupted = interrupts.came
        running.end()
        result["stages"] = [report.as_json() for report in running.reports()]
        result["placement"] = placement_of(running)
    if interrupted:
        raise KeyboardInterrupt
    result["sampling"] = task.sampling.as_json()
    result["load_ms"] = load_ms
    return result


def do_verify(
    stage: Stage, link: LinkConfig | None, wanted: Wanted, watch: Watch, logits: Path
) -> dict[str, Any]:
    """Run a verification's rounds, and return what it takes to read the recording."""
    from stagelink.node.verifying import run_scenario

    began = time.perf_counter()
    stage.checkpoint.release_tokenizer()
    with run_lead(stage, link, watch, decode=_no_text) as running:
        load_ms = round((time.perf_counter() - began) * 1e3)
        script = run_scenario(running, wanted, logits, watch.verifying)
        running.end()
        stages = [report.as_json() for report in running.reports()]
        placement = placement_of(running)
    told = stage.described
    return {
        "script": script.as_json(),
        "form": {"dtype": told.row_dtype, "width": told.width, "planes": told.planes},
        "stages": stages,
        "placement": placement,
        "load_ms": load_ms,
    }


def _generate(
    running: RunningLead, task: Task, prompt: Sequence[int], interrupts: Interrupts
) -> dict[str, Any]:
    stage = running.stage
    limits = limits_of(task, stage.checkpoint, stage.family, stage.settings.context)
    try:
        with interrupts.held():
            done = answer(
                running.lead,
                prompt,
                task,
                limits,
                emit=_silent if task.json else _write,
                is_cancelled=lambda: interrupts.came,
            )
    finally:
        # Also where it failed: the error gets a line of its own.
        if not task.json:
            _write("\n")
    return done.as_json()


def placement_of(running: RunningLead) -> dict[str, Any]:
    """Return the placement as `--json` shows it."""
    return {
        "id": running.placement_id,
        "ranges": [[first, end] for first, end in running.stage.ranges],
    }


def _decoder(stage: Stage) -> Callable[[Sequence[int]], str]:
    tokenizer = stage.checkpoint.usable_tokenizer()
    if tokenizer is None:
        # Whoever gave ids reads ids.
        return lambda ids: "".join(f"{one} " for one in ids)
    return lambda ids: tokenizer.decode(ids, skip_special=True)


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _no_text(ids: Sequence[int]) -> str:  # noqa: ARG001 (the decoder's form)
    """A verification draws nothing that anyone reads."""
    return ""


def _silent(piece: str) -> None:
    """JSON is printed whole, at the end."""
