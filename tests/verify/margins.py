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
    from stagelink.verify.figures import Closeness

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

    def given(self, one: Reference) -> dict[int, Any] | None:
        """Return the rows that come into the stage; ``None`` where it is the first."""
        if self.first == 0:
            return None
        return one.through([(0, self.first)], self.rounds, [None])[0]

    def made(
        self, one: Reference, given: dict[int, Any] | None, other: Reference
    ) -> dict[int, Any]:
        """Run the stage on rows that another engine made."""
        rows = None if given is None else converted(given, other, one)
        return one.through([(self.first, self.end)], self.rounds, [rows])[0]

    def logits(self, one: Reference) -> list[np.ndarray]:
        """Return the whole model's logits, round by round."""
        with one.range(0, self.layers) as loaded:
            made = loaded.play(self.rounds, None)
            return list(loaded.head(only_returned(self.rounds, made, one.form)).values())

    def head(self, one: Reference, made: dict[int, Any], other: Reference) -> list[np.ndarray]:
        """Return the logits of another engine's rows, after the layers that are left."""
        rows = converted(made, other, one)
        if self.end < self.layers:
            rows = one.through([(self.end, self.layers)], self.rounds, [rows])[0]
        with one.range(0, 1) as loaded:
            return list(loaded.head(only_returned(self.rounds, rows, one.form)).values())


def converted(rows: dict[int, Any], of: Reference, to: Reference) -> dict[int, Any]:
    """Return one engine's rows in the format of another."""
    return {index: convert_rows(one, of.form, to.form) for index, one in rows.items()}


def floats(one: Reference, made: dict[int, Any]) -> list[np.ndarray]:
    """Return a stage's rows as float32, round by round."""
    return [one.form.floats(rows) for rows in made.values() if rows.size]


def measure(
    bench: Bench, reference: Reference, engine: str, dtype: str, faults: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Yield what an engine's stage comes to, sound and with each fault that it can have."""
    given = bench.given(reference)
    whole = bench.logits(reference)
    own = bench.reference(engine, dtype)
    came = None if given is None else converted(given, reference, own)
    wanted = floats(reference, bench.made(reference, came, own))
    made = bench.made(own, came, own)
    ends = closeness(bench.logits(own), whole)
    yield {"fault": None, **rows_figures(floats(own, made), wanted), **end_figures(ends)}
    for fault in faults:
        os.environ[FAULT] = fault
        try:
            broken = bench.reference(BROKEN[engine], dtype)
            made = bench.made(broken, came, own)
        except (AttributeError, LookupError, TypeError, StagelinkError):
            # The family has no such part.
            continue
        ends = closeness(bench.head(reference, made, own), whole)
        yield {"fault": fault, **rows_figures(floats(own, made), wanted), **end_figures(ends)}


def rows_figures(ours: list[np.ndarray], references: list[np.ndarray]) -> dict[str, float]:
    """Return the largest error of a row, as `drift` has it, and what others stay under."""
    own, reference = np.concatenate(ours), np.concatenate(references)
    size = np.maximum(np.median(np.abs(reference), 1), 1e-12)
    errors = np.abs(own - reference).mean(1) / size
    parts = {f"q{part}": float(np.quantile(errors, part / 100)) for part in (50, 75, 90)}
    return {"own": drift(ours, references).relative, **parts}


def end_figures(found: Closeness) -> dict[str, float]:
    """Return what is compared with a limit end to end."""
    return {name: getattr(found, name) for name in ("difference", "kl_mean", "kl_most", "top1")}


def main() -> None:
    """Measure the tiny families in a folder, or SmolLM2."""
    from stagelink_conformance.families import FAMILIES, make_family

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(FAMILIES))
    parser.add_argument("--dtype", default="float32", help="of the stages and of the checkpoint")
    parser.add_argument("--engines", default="numpy,torch,mlx,transformers")
    parser.add_argument("--reference", default="transformers")
    parser.add_argument("--reference-dtype", default="float32")
    parser.add_argument("--layers", type=int, nargs=2, help="of the stage; default: a later one")
    parser.add_argument("--faults", default=",".join(FAULTS))
    arguments = parser.parse_args()
    for name in arguments.names:
        folder = arguments.folder / f"{name}-{arguments.dtype}"
        if name == "smollm2":
            bench = Bench.of(name, *(arguments.layers or (10, 20)))
        else:
            if not folder.exists():
                make_family(folder, name, arguments.dtype)
            bench = Bench.of(folder, *(arguments.layers or (4, 8)))
        reference = bench.reference(arguments.reference, arguments.reference_dtype)
        for engine in arguments.engines.split(","):
            held = {"family": name, "engine": engine, "dtype": arguments.dtype}
            faults = tuple(filter(None, arguments.faults.split(","))) if engine in BROKEN else ()
            try:
                for one in measure(bench, reference, engine, arguments.dtype, faults):
                    print(json.dumps({**held, **one}), flush=True)
            except StagelinkError as error:
                print(json.dumps({**held, "refused": error.reason}), flush=True)


if __name__ == "__main__":
    main()
