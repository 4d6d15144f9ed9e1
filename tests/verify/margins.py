"""Measures how far sound and broken stages are from a reference: what the limits are chosen from.

It judges nothing. ``python -m tests.verify.margins FOLDER [NAMES]`` prints a line of JSON for each
measurement; docs/verify.md has what came out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings
from stagelink.errors import StagelinkError
from stagelink.node.reference import Reference, convert_rows, only_returned
from stagelink.verify.figures import closeness, drift
from stagelink.verify.scenario import Scenario, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagelink.request.round import Round

FAULT = "STAGELINK_TEST_FAULT"
BROKEN = {
    "numpy": "tests.support.broken_engine:BrokenEngine",
    "torch": "tests.support.broken_torch:BrokenTorch",
    "mlx": "tests.support.broken_mlx:BrokenMlx",
}
FAULTS = (
    "scale", "dropped_norm", "forgotten_one", "late_position", "all_late", "attention_scale",
    "swapped_heads", "kv_head", "window", "wrong_expert", "no_head_norms", "epsilon", "rounded",
)  # fmt: skip
# As long as the prompts that come with the command.
LENGTHS = (240, 13, 23)


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """One model, the rounds that are run on it, and the stage that is measured."""

    checkpoint: Any
    rounds: Mapping[int, Round]
    first: int
    end: int
    layers: int

    @classmethod
    def of(cls, model: Path | str, first: int, end: int) -> Bench:
        """Open a model and make its rounds: forced prompts of seeded ids."""
        checkpoint = open_checkpoint(model)
        vocab = checkpoint.config["vocab_size"]
        chance = random.Random(1)
        prompts = tuple(tuple(chance.randrange(vocab) for _ in range(n)) for n in LENGTHS)
        shapes = {"vocab": vocab, "context": 512, "chunk_rows": 128, "rows_max": 128}
        rounds = Scenario(Wanted(prompts, ("close",)), **shapes).rounds()
        layers = checkpoint.config["num_hidden_layers"]
        return cls(checkpoint, dict(enumerate(rounds)), first, end, layers)

    def reference(self, engine: str, dtype: str) -> Reference:
        """Return an engine that can compute any range."""
        settings = EngineSettings(
            dtype=dtype, context=512, streams_max=4, rows_max=128, chunk_rows=128
        )
        return Reference(self.checkpoint, engine, settings, lambda *_: None)

    def given(self, one: Reference) -> dict[int, Any]:
        """Return the rows that come into the stage."""
        return one.through([(0, self.first)], self.rounds, [None])[0]

    def made(self, one: Reference, given: dict[int, Any], other: Reference) -> dict[int, Any]:
        """Run the stage on rows that another engine made."""
        rows = {index: convert_rows(own, other.form, one.form) for index, own in given.items()}
        return one.through([(self.first, self.end)], self.rounds, [rows])[0]

    def logits(self, one: Reference) -> list[np.ndarray]:
        """Return the whole model's logits, round by round."""
        with one.range(0, self.layers) as loaded:
            made = loaded.play(self.rounds, None)
            return list(loaded.head(only_returned(self.rounds, made, one.form)).values())


def floats(one: Reference, made: dict[int, Any]) -> list[np.ndarray]:
    """Return a stage's rows as float32, round by round."""
    return [one.form.floats(rows) for rows in made.values() if rows.size]


def measure(bench: Bench, reference: Reference, engines: list[str],
            dtypes: list[str], *, is_broken: bool = True) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield what each engine's stage and each fault in it come to."""
    given = bench.given(reference)
    whole = bench.logits(reference)
    for engine in engines:
        for dtype in dtypes:
            try:
                own = bench.reference(engine, dtype)
                came = {i: convert_rows(r, reference.form, own.form) for i, r in given.items()}
                wanted = floats(reference, bench.made(reference, came, own))
                found = drift(floats(own, bench.made(own, came, own)), wanted)
                apart = closeness(bench.logits(own), whole)
            except StagelinkError as error:
                yield {"engine": engine, "dtype": dtype, "refused": error.reason}
                continue
            yield {
                "engine": engine, "dtype": dtype, "fault": None, "own": found.relative,
                "typical": typical(floats(own, bench.made(own, came, own)), wanted),
                "difference": apart.difference, "kl_mean": apart.kl_mean,
                "kl_most": apart.kl_most, "top1": apart.top1,
            }  # fmt: skip
            for fault in FAULTS if is_broken and engine in BROKEN else ():
                os.environ[FAULT] = fault
                try:
                    broken = bench.reference(BROKEN[engine], dtype)
                    got = floats(broken, bench.made(broken, came, own))
                except (AttributeError, LookupError, TypeError, StagelinkError):
                    # The family has no such part.
                    continue
                yield {
                    "engine": engine, "dtype": dtype, "fault": fault,
                    "own": drift(got, wanted).relative, "typical": typical(got, wanted),
                }  # fmt: skip


def typical(ours: list[np.ndarray], references: list[np.ndarray]) -> float:
    """Return the median of the rows' errors, where `drift` has the largest."""
    own, reference = np.concatenate(ours), np.concatenate(references)
    size = np.maximum(np.median(np.abs(reference), 1), 1e-12)
    return float(np.median(np.abs(own - reference).mean(1) / size))


def main() -> None:
    """Measure the tiny families in a folder, or SmolLM2."""
    from stagelink_conformance.families import FAMILIES, make_family

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(FAMILIES))
    parser.add_argument("--dtypes", default="float32,float16,bfloat16")
    parser.add_argument("--engines", default="numpy,torch,mlx,transformers")
    parser.add_argument("--reference", default="transformers")
    parser.add_argument("--reference-dtype", default="float32")
    parser.add_argument("--sound-only", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.names:
        folder = arguments.folder / name
        if name == "smollm2":
            bench = Bench.of(name, 10, 20)
        else:
            if not folder.exists():
                make_family(folder, name)
            bench = Bench.of(folder, 4, 8)
        held = {"reference": arguments.reference, "reference_dtype": arguments.reference_dtype}
        reference = bench.reference(arguments.reference, arguments.reference_dtype)
        engines, dtypes = arguments.engines.split(","), arguments.dtypes.split(",")
        found = measure(bench, reference, engines, dtypes, is_broken=not arguments.sound_only)
        for one in found:
            print(json.dumps({"family": name, **held, **one}), flush=True)


if __name__ == "__main__":
    main()
