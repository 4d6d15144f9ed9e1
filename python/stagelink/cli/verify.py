"""`stagelink verify`: run a ring, compute the same again without one, and say how they compare.

It orders the parts and prints; what is run is `verify.scenario`'s, what it means `verify.judge`'s.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from stagelink.cli import settings, verify_facts
from stagelink.cli.outcome import FAILED, FINE, exit_code
from stagelink.cli.progress import ProgressLine
from stagelink.cli.stages import run_stages
from stagelink.cli.verify_by_hand import place, run_by_hand
from stagelink.cli.verify_environment import enter_environments
from stagelink.cli.verify_outputs import check_outputs, write_outputs
from stagelink.cli.verify_report import report
from stagelink.config import Job, Task
from stagelink.errors import ConfigError
from stagelink.launch import life
from stagelink.launch.local import launch_folder
from stagelink.verify.scenario import STREAMS

if TYPE_CHECKING:
    import argparse

    from stagelink.config import ModelConfig
    from stagelink.launch.folder import LaunchFolder
    from stagelink.node.reference_choice import ReferenceChoice
    from stagelink.verify.recording import Recording


def run(arguments: argparse.Namespace) -> int:
    """Verify a placement; 0 where every check holds, 1 where one does not."""
    life.end_on_terminate()
    link, world = place(arguments)
    is_by_hand = link is not None
    model = settings.model_config(arguments, world)
    model = dataclasses.replace(model, streams_max=max(STREAMS, model.streams_max))
    checks, limits = verify_facts.checks(arguments.checks), verify_facts.limit_flags(arguments)
    settings.waits(arguments)
    # The reference, and rank 0 of a ring by hand, compute in this process.
    alike = model.engine_of(0) if len(set(model.engines)) == 1 else None
    own = model.engine_of(0) if is_by_hand else None
    enter_environments(arguments.reference_engine or alike or "numpy", own)
    note = settings.engine_note(arguments)
    if note is not None and not arguments.quiet:
        print(note, file=sys.stderr, flush=True)
    environment = settings.thread_environment(arguments.threads, 1 if is_by_hand else model.world)
    # The numeric library reads these when the next line imports it.
    os.environ.update(environment)
    from stagelink.cli.verify_inputs import wanted_of
    from stagelink.node.reference_choice import ReferenceChoice, is_stored

    check_outputs(arguments, is_stored=is_stored(arguments.reference))
    watch = ProgressLine(quiet=arguments.quiet)
    choice = ReferenceChoice.of(
        model,
        watch,
        kind=arguments.reference,
        engine=arguments.reference_engine,
        layers=arguments.reference_layers,
    )
    watch.wipe()
    wanted = wanted_of(arguments, choice, checks)
    model = dataclasses.replace(model, ranges=choice.ranges)
    job = Job(model, Task(quiet=arguments.quiet), wanted)
    with launch_folder() as folder:
        if link is None:
            result = run_stages(folder, job, arguments, environment)
        else:
            result = run_by_hand(folder, job, wanted, link, settings.asked_engines(arguments))
        found = _recording(folder, result, choice, model.world, is_by_hand=is_by_hand)
        receipt = _compared(
            arguments, found, choice, model=model, result=result, limits=limits, checks=checks
        )
        watch.wipe()
        # First what hours were spent on: a full disk must not take it away.
        print(json.dumps(receipt) if arguments.json else report(receipt), flush=True)
        return _kept(arguments, receipt, choice, found)


def _kept(
    arguments: argparse.Namespace, receipt: dict[str, Any], choice: ReferenceChoice,
    found: Recording,
) -> int:  # fmt: skip
    """Write the files that were asked for, each whatever becomes of the others."""

    def keep() -> None:
        if arguments.save_reference:
            choice.save(arguments.save_reference, found)

    failed: list[ConfigError] = []
    for write in (keep, lambda: write_outputs(arguments, receipt)):
        try:
            write()
        except ConfigError as error:
            failed.append(error)
    if not failed:
        return FINE if receipt["verdict"] == "pass" else FAILED
    if not arguments.json:
        raise failed[0]
    # The receipt is the one object on the output; the error is for a person.
    print(f"stagelink: error: {failed[0]}", file=sys.stderr, flush=True)
    return exit_code(failed[0])


def _recording(
    folder: LaunchFolder, result: dict[str, Any], choice: ReferenceChoice, world: int, *,
    is_by_hand: bool,
) -> Recording:  # fmt: skip
    """Read what every stage wrote down; by hand it is only rank 0."""
    from stagelink.verify.recording import RowFormat, Script, read_recording

    ranks = range(2 if is_by_hand else world)
    return read_recording(
        Script.parse(result["script"]),
        RowFormat(**result["form"]),
        choice.family.vocab,
        logits=folder.logits_file,
        rows=[folder.rows_file(rank) for rank in ranks],
        states=[folder.states_file(rank) for rank in (ranks[:1] if is_by_hand else ranks)],
        is_partial=is_by_hand,
    )


def _compared(
    arguments: argparse.Namespace, found: Recording, choice: ReferenceChoice, *,
    model: ModelConfig, result: dict[str, Any], limits: dict[str, float], checks: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    """Measure, judge, and return the receipt."""
    from stagelink.verify import measure
    from stagelink.verify.evidence import Evidence
    from stagelink.verify.judge import judge
    from stagelink.verify.limits import limits_for
    from stagelink.verify.receipt import make_receipt

    stages = result["stages"]
    evidence = Evidence(
        is_same=choice.is_same(stages, found.form.dtype),
        is_invariant=model.batch_invariant,
        repeats=measure.repeats(found),
        compositions=measure.compositions(found),
        states=measure.states(found, is_invariant=model.batch_invariant),
        begins=measure.begins(found),
    )
    choice.measure(evidence, found, [stage["engine"] for stage in stages])
    dtypes = [found.form.dtype, *choice.dtypes]
    backends = [stage["engine"] for stage in stages]
    held = limits_for(
        dtypes, backends, choice.backends,
        is_routed=choice.is_routed, is_recurrent=choice.is_recurrent,
    )  # fmt: skip
    held = dataclasses.replace(held, **limits)
    findings = judge(evidence, held, checks)
    facts = verify_facts.facts(arguments, model, choice, result, found)
    return make_receipt(facts, evidence, findings, held)
