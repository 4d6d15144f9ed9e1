"""How many drafts of a checkpoint's own MTP head the model accepts, and rows a token then costs.

One process, greedy, one stream: drafts are verified in one round each. It measures no speed: the
machine here runs neither the rows nor the ring as users do. It asserts nothing.

    python bench/drafter.py MODEL                    three drafts a round, 64 tokens, five prompts
    python bench/drafter.py MODEL --drafts 1 --tokens 200 --dtype bfloat16
    python bench/drafter.py MODEL --before-norm      the head is handed rows before the final norm
    python bench/drafter.py --smoke                  a tiny random model: that everything still runs
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CONTINUE, OPEN, EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry, RoundPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from stagelink.engine import Drafter

CONTEXT = 1024
PROMPTS = 5
PROMPT_ROWS = 24


@dataclasses.dataclass
class Tally:
    """What a run drafted.

    Attributes:
        tokens: The text.
        offered: Drafts that were verified, by their place in a round.
        accepted: Those of them that the model chose too, all before them included.
        rounds: Verify rounds.
    """

    tokens: list[int]
    offered: list[int]
    accepted: list[int]
    rounds: int = 0


class Stream:
    """One stream through a pipeline of engines, and the same in a drafter where there is one."""

    def __init__(self, pipeline: Pipeline, name: int, drafter: Drafter | None = None) -> None:
        """Take a stream id that is not open."""
        self._pipeline, self._name, self._drafter = pipeline, name, drafter
        self._open = False

    def run(self, first: int, ids: Sequence[int]) -> tuple[npt.NDArray[np.uint8], list[int]]:
        """Run ids from position ``first`` on; return the rows ``[n, bytes]`` and the choices."""
        entry = Entry(self._name, CONTINUE if self._open else OPEN, first, len(ids))
        self._open = True
        buffer = self._pipeline.send(RoundPlan.of(entry), np.array(ids, dtype=np.int64))
        rows = buffer.reshape(len(ids), -1)
        logits = self._pipeline.head(rows[None])
        return rows.copy(), [int(one) for one in logits.argmax(axis=1)]

    def draft(
        self, first: int, rows: npt.NDArray[np.uint8], following: Sequence[int], count: int
    ) -> list[int]:
        """Hand rows and the tokens after them to the drafter; return its drafts."""
        if self._drafter is None or count == 0:
            return []
        own = np.ascontiguousarray(rows).reshape(-1)
        ids = np.array(following, dtype=np.int64)
        return [int(one) for one in self._drafter.draft(self._name, first, own, ids, count)]


def speculate(stream: Stream, prompt: Sequence[int], count: int, drafts: int) -> Tally:
    """Generate ``count`` tokens greedily; ``drafts`` are guessed before each round, 0 for none."""
    rows, chosen = stream.run(0, prompt)
    tally = Tally([chosen[-1]], [0] * drafts, [0] * drafts)
    position = len(prompt)
    guesses = stream.draft(0, rows, [*prompt[1:], chosen[-1]], drafts)
    while len(tally.tokens) < count:
        rows, chosen = stream.run(position, [tally.tokens[-1], *guesses])
        right = 0
        while right < len(guesses) and guesses[right] == chosen[right]:
            right += 1
        for place in range(len(guesses)):
            tally.offered[place] += 1
            tally.accepted[place] += place < right
        tally.rounds += 1
        tally.tokens += chosen[: right + 1]
        # Rows of drafts that were wrong are cut off by the next round's first position.
        guesses = stream.draft(position, rows[: right + 1], chosen[: right + 1], drafts)
        position += right + 1
    del tally.tokens[count:]
    return tally


def load(model: Path | str, dtype: str, *, after_norm: bool = True) -> tuple[Pipeline, Drafter]:
    """Load a whole model and its drafter on the torch engine."""
    from stagelink_torch import TorchEngine  # noqa: PLC0415 - only where it is installed

    checkpoint = open_checkpoint(model)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    context = min(CONTEXT, family.context)
    settings = EngineSettings(dtype=dtype, context=context, streams_max=2 * PROMPTS, threads=1)
    engine = TorchEngine(checkpoint, family, 0, family.layers, lead=True, settings=settings)
    engine.load()
    return Pipeline([engine]), engine.load_drafter(after_norm=after_norm)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a checkpoint with an MTP head")
    parser.add_argument("--drafts", type=int, default=3, help="drafts a round (default 3)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a prompt (default 64)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument(
        "--before-norm", action="store_true", help="rows before the final norm, to compare"
    )
    parser.add_argument("--json", metavar="FILE", help="append the result as a JSON line")
    parser.add_argument("--smoke", action="store_true", help="a tiny model made on the spot")
    arguments = parser.parse_args(words)
    if not arguments.smoke and not arguments.model:
        parser.error("expected a checkpoint or --smoke, got neither")
    with tempfile.TemporaryDirectory() as made:
        model = arguments.model or _tiny(Path(made))
        tokens = 16 if arguments.smoke else arguments.tokens
        loaded = load(model, arguments.dtype, after_norm=not arguments.before_norm)
        line = measure(*loaded, arguments.drafts, tokens)
    print(report(line))
    if arguments.json:
        with Path(arguments.json).open("a", encoding="utf-8") as out:
            out.write(json.dumps({"bench": "drafter", "dtype": arguments.dtype, **line}) + "\n")
    return 0


def measure(pipeline: Pipeline, drafter: Drafter, drafts: int, tokens: int) -> dict[str, Any]:
    """Run the prompts; return acceptance by place, tokens a round, and equal texts."""
    generator = np.random.default_rng(7)
    runs, equal = [], 0
    for name in range(1, PROMPTS + 1):
        prompt = [int(one) for one in generator.integers(0, 255, PROMPT_ROWS)]
        runs.append(speculate(Stream(pipeline, name, drafter), prompt, tokens, drafts))
        alone = speculate(Stream(pipeline, PROMPTS + name), prompt, tokens, 0)
        equal += runs[-1].tokens == alone.tokens
    offered = [sum(run.offered[place] for run in runs) for place in range(drafts)]
    accepted = [sum(run.accepted[place] for run in runs) for place in range(drafts)]
    rounds = sum(run.rounds for run in runs)
    return {
        "offered": offered,
        "accepted": accepted,
        "rounds": rounds,
        "tokens_a_round": (sum(accepted) + rounds) / rounds,
        "equal_texts": equal,
        "texts": len(runs),
    }


def report(line: dict[str, Any]) -> str:
    """The result in words and numbers."""
    shares = [
        f"{100 * yes / of:.0f} %" for yes, of in zip(line["accepted"], line["offered"], strict=True)
    ]
    return (
        f"accepted by place in the round: {', '.join(shares)} of {line['offered'][0]}; "
        f"{line['tokens_a_round']:.2f} tokens a round; "
        f"{line['equal_texts']} of {line['texts']} texts equal those without drafts"
    )


def _tiny(folder: Path) -> Path:
    """Make a tiny model whose head is random."""
    from stagelink_conformance.drafters import make_drafter_family  # noqa: PLC0415 - needs torch

    return make_drafter_family(folder / "tiny", "qwen3_5_text")


if __name__ == "__main__":
    sys.exit(main())
