"""The torch engine on SmolLM2: beside transformers, beside memory's own speed, and many streams.

Everything runs in turn in one process with one thread, and every figure is a ratio of this run.
It asserts nothing.

    python bench/engines.py                     decode, prompt, 16 streams, the invariant mode, load
    python bench/engines.py --dtype bfloat16 --model FOLDER --repeats 9
    python bench/engines.py --json results.jsonl
    python bench/engines.py --smoke             seconds: that everything still runs
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import machine
from engine_contenders import Contender, Engine, Memory, Transformers
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STREAMS = 16
_SEED = 1
# What else is compared, and with what.
OTHERS = {"torch, invariant": "torch", "numpy": "torch", "numpy, invariant": "numpy"}
_NEEDED = {"torch": "torch", "transformers": "transformers"}


@dataclasses.dataclass(frozen=True)
class Size:
    """How much a run does: prompt rows, prompts a turn, decode steps after the last, turns."""

    prompt: int
    prompts: int
    steps: int
    repeats: int


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parse_arguments(words)
    missing = [one for one, name in _NEEDED.items() if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed", file=sys.stderr)
        return 0
    told = machine.describe()
    print(json.dumps({"machine": told}))
    size = Size(32, 1, 4, 1) if arguments.smoke else Size(256, 3, 24, arguments.repeats)
    for line in run(arguments.model, arguments.dtype, size):
        print(row(line), flush=True)
        if arguments.json:
            full = {"bench": "engines", "dtype": arguments.dtype, **line, "machine": told}
            with Path(arguments.json).open("a", encoding="utf-8") as out:
                out.write(json.dumps(full) + "\n")
    return 0


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="a checkpoint (default smollm2)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--repeats", type=int, default=5, help="turns of all (default 5)")
    parser.add_argument("--json", metavar="FILE", help="append the results as JSON lines")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, one turn")
    return parser.parse_args(words)


def run(model: str, dtype: str, size: Size) -> Iterator[dict[str, Any]]:
    """Every case, as it is done: a ratio, its spread, and the two figures behind it."""
    checkpoint = open_checkpoint(model)
    yield load_case(model, dtype)
    common: dict[str, object] = {
        "dtype": dtype,
        "context": min(1024, read_family(checkpoint.config).context),
        "streams_max": STREAMS,
        "rows_max": size.prompt,
        "threads": 1,
    }
    ours = Engine("torch", checkpoint, **common)
    contenders: dict[str, Contender] = {
        "torch": ours,
        "transformers": Transformers(checkpoint, dtype),
    }
    if dtype == "float32":
        contenders["torch, invariant"] = Engine("torch", checkpoint, **common, batch_invariant=True)
        numpy_settings = {key: value for key, value in common.items() if key != "threads"}
        contenders["numpy"] = Engine("numpy", checkpoint, **numpy_settings)
        numpy_settings["batch_invariant"] = True
        contenders["numpy, invariant"] = Engine("numpy", checkpoint, **numpy_settings)
    prompts, steps, floors = in_turn(contenders, size, ours.engine.describe().weight_bytes)
    yield compared("prompt", "torch", "transformers", prompts)
    yield compared("decode", "torch", "transformers", steps)
    yield compared("decode", "torch", "memory floor", {**steps, "memory floor": floors})
    for other, usual in OTHERS.items():
        if other in steps:
            yield compared("prompt", other, usual, prompts)
            yield compared("decode", other, usual, steps)
    yield many_streams(ours, size)


def in_turn(
    contenders: dict[str, Contender], size: Size, weight_bytes: int
) -> tuple[dict[str, list[float]], dict[str, list[float]], list[float]]:
    """Run all, in another order each time; seconds a prompt, a step, and a floor a step.

    What ran before leaves caches and free memory behind: none follows always the same one.
    """
    ids = _ids(size.prompt + size.steps)
    memory = Memory()
    prompts: dict[str, list[float]] = {name: [] for name in contenders}
    steps: dict[str, list[float]] = {name: [] for name in contenders}
    floors = []
    shuffled = random.Random(_SEED)
    order = list(contenders.items())
    for _ in range(size.repeats):
        begun: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(size.prompts):
            shuffled.shuffle(order)
            for name, one in order:
                begun[name].append(one.prompt(ids[: size.prompt]))
        for name in contenders:
            prompts[name].append(statistics.median(begun[name]))
        # Step by step in turn: what else the machine does then meets all of them alike.
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for at in ids[size.prompt :]:
            for name, one in order:
                taken[name] += one.steps([at])
        for name in contenders:
            steps[name].append(statistics.median(taken[name]))
        floors.append(weight_bytes / max(memory.bytes_a_second() for _ in range(3)))
    return prompts, steps, floors


def compared(
    case: str, name: str, reference: str, seconds: dict[str, list[float]]
) -> dict[str, Any]:
    """How many times as fast as the reference, turn by turn."""
    ratios = [other / own for own, other in zip(seconds[name], seconds[reference], strict=True)]
    return {
        "case": case,
        "engine": name,
        "reference": reference,
        "ms": _ms(statistics.median(seconds[name])),
        "reference_ms": _ms(statistics.median(seconds[reference])),
        **_spread(ratios),
    }


def many_streams(ours: Engine, size: Size) -> dict[str, Any]:
    """Rows a second of sixteen streams in a round over those of one stream, in turn."""
    ids = _ids(max(size.prompt // 4, 2 * STREAMS))
    ratios, single, together = [], [], []
    for _ in range(size.repeats):
        ours.prompt(ids)
        single.append(statistics.median(ours.steps(ids[: size.steps])))
        for stream in range(2, STREAMS + 1):
            ours.open(stream, ids[: len(ids) - stream])
        together.append(statistics.median(ours.together(ids, max(size.steps // 3, 2))))
        ratios.append(STREAMS * single[-1] / together[-1])
    return {
        "case": f"{STREAMS} streams",
        "engine": "torch",
        "reference": "torch, one stream",
        "ms": _ms(statistics.median(together)),
        "reference_ms": _ms(statistics.median(single)),
        **_spread(ratios),
    }


def load_case(model: str, dtype: str) -> dict[str, Any]:
    """Seconds to make and load the middle third, imports done; bytes read over own bytes."""
    from stagelink_torch import TorchEngine  # noqa: PLC0415 - main looked whether torch is here

    # The first opening of a GGUF converts it; what is timed is a stage's start after that.
    open_checkpoint(model)
    times, share = [], 0.0
    for _ in range(3):
        begin = time.perf_counter()
        checkpoint = open_checkpoint(model)
        family = read_family(checkpoint.config, tensors=checkpoint.tensors)
        first, end = family.layers // 3, 2 * family.layers // 3
        settings = EngineSettings(dtype=dtype, context=min(1024, family.context), threads=1)
        engine = TorchEngine(checkpoint, family, first, end, lead=False, settings=settings)
        engine.load()
        times.append(time.perf_counter() - begin)
        own = sum(checkpoint.tensors[name].nbytes for name in family.own_tensors(first, end, False))
        share = checkpoint.bytes_read / own
        engine.close()
    return {
        "case": "load a third",
        "engine": "torch",
        "reference": "own tensors' bytes",
        "ms": _ms(statistics.median(times)),
        "reference_ms": None,
        **_spread([share]),
    }


def row(line: dict[str, Any]) -> str:
    """One line of the table."""
    figures = f"{line['ratio']:>7} ({line['ratio_low']} to {line['ratio_high']})"
    own, other = line["ms"], line["reference_ms"]
    times = f"{own} ms" + ("" if other is None else f" against {other} ms")
    return f"{line['case']:14} {line['engine']:18} over {line['reference']:20}{figures:26} {times}"


def _spread(ratios: Sequence[float]) -> dict[str, float]:
    middle = statistics.median(ratios)
    return {
        "ratio": round(middle, 3),
        "ratio_low": round(min(ratios), 3),
        "ratio_high": round(max(ratios), 3),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def _ids(count: int) -> list[int]:
    generator = np.random.default_rng(5)
    drawn: Callable[..., Any] = generator.integers
    return [int(one) for one in drawn(1, 250, count)]


def one_thread() -> None:
    """Begin again with one thread where the environment says otherwise: libraries count at import.

    A second thread gains little at decode, and stalls where cores are shared.
    """
    wanted = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if any(os.environ.get(name) != one for name, one in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)  # noqa: S606


if __name__ == "__main__":
    one_thread()
    raise SystemExit(main())
