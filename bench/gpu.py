"""The torch engine on a CUDA device: parity with the CPU, graphs, pinned copies, speed, one script.

It runs tests/gpu first, then prints ratios of this run; it asserts nothing itself. Where torch sees
no device it says so and ends well.

    python bench/gpu.py                       tests, then every figure, SmolLM2 in bfloat16
    python bench/gpu.py --model FOLDER --dtype float32 --skip-tests
    python bench/gpu.py --json results.jsonl
    python bench/gpu.py --smoke               seconds: that everything still runs
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
TESTS_SECONDS = 400


def main(words: Sequence[str] | None = None) -> int:
    """Test, measure and print."""
    arguments = parse_arguments(words)
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    code = 0 if arguments.skip_tests else run_tests()
    told = {**machine.describe(), "device": _device_name()}
    print(json.dumps({"machine": told}))
    for line in run(arguments):
        print(json.dumps(line), flush=True)
        if arguments.json:
            full = {"bench": "gpu", "dtype": arguments.dtype, **line, "machine": told}
            with Path(arguments.json).open("a", encoding="utf-8") as out:
                out.write(json.dumps(full) + "\n")
    return code


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="a checkpoint (default smollm2)")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--repeats", type=int, default=5, help="turns of all (default 5)")
    parser.add_argument("--skip-tests", action="store_true", help="measure only")
    parser.add_argument("--json", metavar="FILE", help="append the results as JSON lines")
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, one turn")
    return parser.parse_args(words)


def why_not() -> str | None:
    """Say why nothing can run here, or ``None``."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch  # noqa: PLC0415 - looked for first

    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def run_tests() -> int:
    """Run tests/gpu; its exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/gpu"]
    return subprocess.run(command, cwd=ROOT, timeout=TESTS_SECONDS, check=False).returncode


def run(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every case, as it is done."""
    from gpu_cases import (  # noqa: PLC0415 - needs torch
        Case,
        copies,
        graph_and_plain,
        parity,
        split_and_whole,
    )
    from gpu_graphs import kinds, on_cuda  # noqa: PLC0415 - likewise

    repeats = 1 if arguments.smoke else arguments.repeats
    rows, steps = (64, 8) if arguments.smoke else (512, 64)
    case = Case(arguments.model, arguments.dtype, rows, steps, repeats)
    yield from copies(smoke=arguments.smoke)
    yield parity(case)
    yield from split_and_whole(case)
    yield graph_and_plain(case)
    yield from kinds(on_cuda(arguments.dtype, smoke=arguments.smoke))


def _device_name() -> str:
    import torch  # noqa: PLC0415 - looked for first

    return str(torch.cuda.get_device_name(0))


if __name__ == "__main__":
    raise SystemExit(main())
