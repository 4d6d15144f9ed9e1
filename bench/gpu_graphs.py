"""The graph cases of bench/gpu.py: replays beside the same layers without one, and what one costs.

The models are random, one of each kind of layer, wide enough that a device has something to do.
Seconds are the host's, from a call to the end of the device's work. It prints nothing.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CLOSE, CONTINUE, EngineSettings, read_family
from stagelink_conformance.families import make_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, step
from stagelink_torch import TorchEngine
from stagelink_torch.graphs import EagerRecorder, GraphRunner, PlainRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONTEXT = 1024
_PROMPT_ROWS = 100
_EXPERTS = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 256}
_WIDE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "initializer_range": 0.02,
}
_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 16,
    "head_dim": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 256,
}
# Of each kind of layer: attention, experts, sinks, a recurrent state beside experts, latents.
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": _WIDE,
    "qwen3_moe": {**_WIDE, **_EXPERTS, "mlp_only_layers": []},
    "gpt_oss": {
        **_WIDE,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "intermediate_size": 512,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "qwen3_next": {
        **_WIDE,
        **_EXPERTS,
        **_DELTA,
        "shared_expert_intermediate_size": 256,
        "mlp_only_layers": [],
    },
    "deepseek_v3": {**_WIDE, **_LATENT},
}


@dataclasses.dataclass(frozen=True)
class Ways:
    """How a case runs, and how much of it.

    ``runners`` make what runs an engine's batches, by the name of the way; the first is a graph's.
    """

    device: str
    dtype: str
    streams: tuple[int, ...]
    steps: int
    repeats: int
    runners: dict[str, Callable[[TorchEngine], Any]]


def on_cuda(dtype: str, *, smoke: bool) -> Ways:
    """Graphs, the same steps without one, and every stream's layers by themselves."""
    return Ways(
        device="cuda",
        dtype=dtype,
        streams=(1, 2) if smoke else (1, 4, 16),
        steps=8 if smoke else 48,
        repeats=1 if smoke else 5,
        runners={
            "graph": lambda engine: _inside(engine).runner,
            "same steps": eager_runner,
            "plain": plain_runner,
        },
    )


def kinds(ways: Ways, **changes: object) -> Iterator[dict[str, Any]]:
    """Decode steps of every kind of layer, each way; ``changes`` are fields of the config."""
    for name, fields in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            model = make_family(Path(folder), name, ways.dtype, **{**fields, **changes})
            yield from _kind(name, model, ways)


def eager_runner(engine: TorchEngine) -> GraphRunner:
    """What a graph replays, launched operation by operation."""
    return GraphRunner(_inside(engine).model, engine._setup, EagerRecorder())  # noqa: SLF001


def plain_runner(engine: TorchEngine) -> PlainRunner:
    """No recordable steps: streams attend and experts compute one after the other."""
    return PlainRunner(_inside(engine).model, engine._setup)  # noqa: SLF001


def _inside(engine: TorchEngine) -> Any:
    """What the engine computes with; the bench changes a part of it."""
    return engine._loaded  # noqa: SLF001


def _kind(name: str, model: Path, ways: Ways) -> Iterator[dict[str, Any]]:
    """What recording costs, then the ways beside each other, for each number of streams."""
    engines = {way: _engine(model, ways) for way in ways.runners}
    for (way, make), engine in zip(ways.runners.items(), engines.values(), strict=True):
        twin: Any = engine
        twin._loaded = dataclasses.replace(_inside(engine), runner=make(engine))  # noqa: SLF001
        if way == "graph":
            yield _recorded(name, engine, ways)
    for streams in ways.streams:
        taken: dict[str, list[float]] = {way: [] for way in engines}
        for repeat in range(ways.repeats):
            for way, engine in engines.items():
                taken[way].append(_decode(Pipeline([engine]), streams, repeat, ways))
        first, *others = taken
        for other in others:
            ratios = [b / a for a, b in zip(taken[first], taken[other], strict=True)]
            yield {
                "case": f"{name}, {streams} streams, {first} over {other}",
                "ms": round(statistics.median(taken[first]) * 1e3, 3),
                "reference_ms": round(statistics.median(taken[other]) * 1e3, 3),
                "ratio": round(statistics.median(ratios), 3),
            }


def _recorded(name: str, engine: TorchEngine, ways: Ways) -> dict[str, Any]:
    """Seconds and memory of the recordings that a start makes."""
    before = _reserved(ways)
    begin = time.perf_counter()
    engine.warm()
    _wait(ways)
    seconds = time.perf_counter() - begin
    return {
        "case": f"{name}, warming up",
        "recordings": len(_inside(engine).runner._shapes),  # noqa: SLF001
        "seconds": round(seconds, 3),
        "reserved_mib": round((_reserved(ways) - before) / 2**20, 1),
    }


def _engine(model: Path, ways: Ways) -> TorchEngine:
    """The whole model, loaded."""
    checkpoint = open_checkpoint(model)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    settings = EngineSettings(
        dtype=ways.dtype,
        device=ways.device,
        context=min(_CONTEXT, family.context),
        streams_max=max(ways.streams),
        rows_max=128,
    )
    engine = TorchEngine(checkpoint, family, 0, family.layers, lead=True, settings=settings)
    engine.load()
    return engine


def _decode(pipeline: Pipeline, streams: int, repeat: int, ways: Ways) -> float:
    """Seconds of a decode step of so many streams, the median of several; they are closed then."""
    ids = np.random.default_rng(repeat).integers(1, 250, _PROMPT_ROWS + ways.steps).tolist()
    for stream in range(1, streams + 1):
        pipeline.play(chunked(stream, ids[:_PROMPT_ROWS], _PROMPT_ROWS))
    taken = []
    for at in range(_PROMPT_ROWS, _PROMPT_ROWS + ways.steps):
        entries = [Entry(stream, CONTINUE, at, 1) for stream in range(1, streams + 1)]
        script = [step(*entries, ids=[ids[at]] * streams)]
        _wait(ways)
        begin = time.perf_counter()
        pipeline.play(script)
        _wait(ways)
        taken.append(time.perf_counter() - begin)
    for stream in range(1, streams + 1):
        pipeline.play([step(Entry(stream, CLOSE), ids=[])])
    return statistics.median(taken)


def _wait(ways: Ways) -> None:
    if ways.device == "cuda":
        torch.cuda.synchronize()


def _reserved(ways: Ways) -> int:
    return torch.cuda.memory_reserved() if ways.device == "cuda" else 0
