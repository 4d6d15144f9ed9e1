"""Rank 0 of a ring of llamacpp stages, driven by tasks on standard input; followers join it.

It measures with the loop that `stagelink generate` runs, and draws greedily as the others do.

    llamacpp_lead.py MODEL LAYERS LISTEN KEY_FILE THREADS WAIT
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from llamacpp_tasks import CONTEXT, STREAMS, VOCAB, Task, serve

if TYPE_CHECKING:
    from stagelink.node.lead import Lead


def measure(lead: Lead, task: Task) -> dict[str, float]:
    """Prompts until every stream has its first token; then rounds of all of them."""
    from stagelink.request.sampling import Sampling  # noqa: PLC0415 (threads are set first)
    from stagelink.request.stops import Limits  # noqa: PLC0415

    ids = np.random.default_rng(task.seed).integers(VOCAB, size=(task.streams, task.rows))
    began = time.perf_counter()
    # With one token each, no stream decodes between the others' chunks.
    first = Limits(1, CONTEXT, ignore_eos=True)
    streams = [lead.submit(row.tolist(), Sampling(), first) for row in ids]
    while any(stream.outcome is None for stream in streams):
        lead.step()
    prompt = time.perf_counter() - began
    lead.drain()
    if not task.steps:
        return task.figures(prompt, [])
    # The steps begin where the prompts end, in contexts of the same length.
    limits = Limits(task.steps + 2 * task.streams * (1 + task.rows // 64), CONTEXT, ignore_eos=True)
    streams = [lead.submit(row.tolist(), Sampling(), limits) for row in ids]
    steps: list[float] = []
    while len(steps) < task.steps and all(stream.outcome is None for stream in streams):
        began = time.perf_counter()
        gained = lead.step()
        if len(gained) == task.streams and all(len(one.generated) > 1 for one in streams):
            steps.append(time.perf_counter() - began)
    for stream in streams:
        lead.cancel(stream)
    lead.drain()
    return task.figures(prompt, steps)


def main() -> None:
    """Join, load, then serve tasks."""
    model, layers, listen, key_file, threads, wait = sys.argv[1:]
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    from stagelink.config import LinkConfig, ModelConfig  # noqa: PLC0415
    from stagelink.node.run import run_lead  # noqa: PLC0415
    from stagelink.node.stage import prepare  # noqa: PLC0415
    from stagelink.node.watch import Watch  # noqa: PLC0415
    from stagelink.placement.ranges import parse_ranges  # noqa: PLC0415

    ranges = parse_ranges(layers)
    config = ModelConfig(
        model, len(ranges), ranges, engines=("llamacpp",), context=CONTEXT, streams_max=STREAMS,
        threads=int(threads),
    )  # fmt: skip

    class Said(Watch):
        """The address goes to standard error, where the caller reads it."""

        def listening(self, stage: object, address: str) -> None:
            del stage
            print(address, file=sys.stderr, flush=True)

    stage = prepare(config, 0)
    link = LinkConfig(rank=0, listen=listen, lead=None, key_file=key_file, wait=wait)
    with run_lead(stage, link, Said(), decode=lambda _: "") as running:
        serve(lambda task: measure(running.lead, task))


if __name__ == "__main__":
    main()
