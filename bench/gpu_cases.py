"""The cases of bench/gpu.py: pinned copies, parity, a split beside the whole, graphs.

Seconds are the host's, from a call to the end of the device's work. It prints nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CLOSE, EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, step
from stagelink_torch import TorchEngine
from stagelink_torch.graphs import PlainRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_FLOOR_BYTES = 1 << 30
_PARITY_ROWS = 200


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and how much is run of it."""

    model: str
    dtype: str
    rows: int
    steps: int
    repeats: int

    def pipeline(self, cuts: Sequence[int] = (), device: str = "cuda", dtype: str = "") -> Pipeline:
        """Loaded and warmed stages that meet at ``cuts``."""
        checkpoint = open_checkpoint(self.model)
        family = read_family(checkpoint.config, tensors=checkpoint.tensors)
        settings = EngineSettings(
            dtype=dtype or self.dtype,
            device=device,
            context=min(2048, family.context),
            rows_max=self.rows,
        )
        engines = []
        for first, end in itertools.pairwise([0, *cuts, family.layers]):
            lead = first == 0
            engine = TorchEngine(checkpoint, family, first, end, lead=lead, settings=settings)
            engine.load()
            engine.warm()
            engines.append(engine)
        return Pipeline(engines)

    def layers(self) -> int:
        """Layers of the model."""
        return read_family(open_checkpoint(self.model).config).layers


def copies(*, smoke: bool) -> Iterator[dict[str, Any]]:
    """Pinned copies over pageable ones, each way."""
    for size in (20 << 10, 1 << 20) if smoke else (20 << 10, 1 << 20, 64 << 20):
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        kinds = {
            "pageable": torch.empty(size, dtype=torch.uint8),
            "pinned": torch.empty(size, dtype=torch.uint8, pin_memory=True),
        }
        rates = {
            (way, name): _rate(size, target, source)
            for name, host in kinds.items()
            for way, target, source in (("in", device, host), ("out", host, device))
        }
        for way in ("in", "out"):
            pinned, pageable = rates[way, "pinned"], rates[way, "pageable"]
            yield {
                "case": f"copy {way}",
                "bytes": size,
                "pinned_gb_s": round(pinned / 1e9, 3),
                "pageable_gb_s": round(pageable / 1e9, 3),
                "ratio": round(pinned / pageable, 3),
            }


def parity(case: Case) -> dict[str, Any]:
    """Logits beside those of the CPU in float32, teacher-forced."""
    ids = _ids(_PARITY_ROWS)
    chunks = min(case.rows, 64)
    got, expected = (
        np.concatenate([one.logits for one in pipeline.play(chunked(1, ids, chunks))])
        for pipeline in (case.pipeline(), case.pipeline(device="cpu", dtype="float32"))
    )
    same = got.argmax(axis=1) == expected.argmax(axis=1)
    return {
        "case": "parity",
        "positions": len(ids),
        "logit_max_difference": float(np.abs(got - expected).max()),
        "top1": round(float(same.mean()), 4),
    }


def split_and_whole(case: Case) -> Iterator[dict[str, Any]]:
    """Two stages in one process over the whole, and the whole over the memory floor."""
    whole, split = case.pipeline(), case.pipeline([case.layers() // 2])
    ids = _ids(case.rows + case.steps)
    prompts: dict[str, list[float]] = {"whole": [], "split": []}
    steps: dict[str, list[float]] = {"whole": [], "split": []}
    for repeat in range(case.repeats):
        for name, pipeline in (("whole", whole), ("split", split)):
            prompt, single = _play(pipeline, ids, case.rows, repeat + 1)
            prompts[name].append(prompt)
            steps[name].append(single)
    for kind, seconds in (("prompt", prompts), ("decode", steps)):
        ratios = [a / b for a, b in zip(seconds["whole"], seconds["split"], strict=True)]
        yield {
            "case": f"{kind}, two stages over one",
            "ms": _ms(seconds["split"]),
            "reference_ms": _ms(seconds["whole"]),
            "ratio": round(statistics.median(ratios), 3),
        }
    weight_bytes = whole.engines[0].describe().weight_bytes
    floor = weight_bytes / _device_rate()
    yield {
        "case": "decode over the memory floor",
        "ms": _ms(steps["whole"]),
        "reference_ms": _ms([floor]),
        "ratio": round(floor / statistics.median(steps["whole"]), 3),
    }


def graph_and_plain(case: Case) -> dict[str, Any]:
    """Decode by graphs over decode step by step, and how far their logits are apart."""
    graph, plain = case.pipeline(), case.pipeline()
    for engine in plain.engines:
        twin: Any = engine
        runner = PlainRunner(twin._loaded.model, twin._setup)  # noqa: SLF001 - a graph's twin
        twin._loaded = dataclasses.replace(twin._loaded, runner=runner)  # noqa: SLF001 - likewise
    ids = _ids(case.rows + case.steps)
    ratios: list[float] = []
    both: tuple[list[float], list[float]] = ([], [])
    for repeat in range(case.repeats):
        taken = [_play(one, ids, case.rows, repeat + 1)[1] for one in (graph, plain)]
        for seconds, one in zip(both, taken, strict=True):
            seconds.append(one)
        ratios.append(taken[1] / taken[0])
    return {
        "case": "decode, graph over plain",
        "ms": _ms(both[0]),
        "reference_ms": _ms(both[1]),
        "ratio": round(statistics.median(ratios), 3),
    }


def _play(pipeline: Pipeline, ids: Sequence[int], rows: int, stream: int) -> tuple[float, float]:
    """Seconds of a prompt, and the median of the single steps after it; the stream is closed."""
    prompt = _seconds(lambda: pipeline.play(chunked(stream, ids[:rows], rows)))
    taken = []
    for one in chunked(stream, ids[rows:], 1, at=rows):
        script = [one]
        taken.append(_seconds(lambda script=script: pipeline.play(script)))  # type: ignore[misc]
    pipeline.play([step(Entry(stream, CLOSE), ids=[])])
    return prompt, statistics.median(taken)


def _rate(size: int, target: torch.Tensor, source: torch.Tensor) -> float:
    """Bytes a second of a copy; the best of several."""
    return size / min(_seconds(lambda: target.copy_(source, non_blocking=True)) for _ in range(20))


def _device_rate() -> float:
    """Bytes a second that the device reads its own memory with."""
    block = torch.ones(_FLOOR_BYTES // 4, device="cuda")
    return _FLOOR_BYTES / min(_seconds(block.sum) for _ in range(10))


def _seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 3)


def _ids(count: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(5).integers(1, 250, count)]
