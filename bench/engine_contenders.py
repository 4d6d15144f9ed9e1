"""What bench/engines.py lets run: an engine of ours as one stage, transformers' own model, a sum.

Each has the same face: a prompt, single steps, steps of many streams; seconds come back. It
compares nothing.
"""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stagelink.engine import CLOSE, CONTINUE, EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import chunked, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.engine import Checkpoint

ENGINES = {"torch": "stagelink_torch:TorchEngine", "numpy": "stagelink_numpy:NumpyEngine"}
_FLOOR_BYTES = 512 << 20


class Contender(Protocol):
    """One way to run a model."""

    def prompt(self, ids: Sequence[int]) -> float:
        """Begin anew with a prompt, in one chunk; seconds."""
        ...

    def steps(self, ids: Sequence[int]) -> list[float]:
        """Go on one row at a time; seconds each."""
        ...


class Engine:
    """One of our engines, the whole model in one stage, embedding and head included."""

    def __init__(self, name: str, checkpoint: Checkpoint, **settings: object) -> None:
        """Load; ``settings`` are fields of ``EngineSettings``."""
        module, _, attribute = ENGINES[name].partition(":")
        factory: Any = getattr(importlib.import_module(module), attribute)
        family = read_family(checkpoint.config, tensors=checkpoint.tensors)
        chosen = EngineSettings(**settings)  # type: ignore[arg-type]
        self.engine = factory(checkpoint, family, 0, family.layers, lead=True, settings=chosen)
        self.engine.load()
        self.engine.warm()
        self._pipeline = Pipeline([self.engine])
        self._held: dict[int, int] = {}

    def prompt(self, ids: Sequence[int]) -> float:
        """Begin anew with a prompt."""
        self.close()
        return self.open(1, ids)

    def open(self, stream: int, ids: Sequence[int]) -> float:
        """Open one more stream with a prompt."""
        self._held[stream] = len(ids)
        return self._timed(chunked(stream, ids, len(ids)))

    def steps(self, ids: Sequence[int]) -> list[float]:
        """Go on with stream 1."""
        script = chunked(1, ids, 1, at=self._held[1])
        self._held[1] += len(ids)
        return [self._timed([one]) for one in script]

    def together(self, ids: Sequence[int], count: int) -> list[float]:
        """Go on with every open stream at once, ``count`` times."""
        taken = []
        for _ in range(count):
            entries = [Entry(stream, CONTINUE, at, 1) for stream, at in sorted(self._held.items())]
            taken.append(self._timed([step(*entries, ids=ids[: len(entries)])]))
            self._held = {stream: at + 1 for stream, at in self._held.items()}
        return taken

    def close(self) -> None:
        """End every stream."""
        for stream in self._held:
            self._pipeline.play([step(Entry(stream, CLOSE), ids=[])])
        self._held = {}

    def _timed(self, script: Any) -> float:
        begin = time.perf_counter()
        self._pipeline.play(script)
        return time.perf_counter() - begin


class Transformers:
    """The model of transformers with its own cache, on the same weights."""

    def __init__(self, checkpoint: Checkpoint, dtype: str) -> None:
        """Build from the config and put the checkpoint's tensors in, aligned as they are read."""
        import torch  # noqa: PLC0415 - this contender only
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - likewise

        self._torch = torch
        config = dict(read_family(checkpoint.config, tensors=checkpoint.tensors).config)
        self._config: Any = AutoConfig.for_model(config.pop("model_type"), **config)
        make: Any = AutoModelForCausalLM.from_config
        self._model: Any = make(self._config, dtype=getattr(torch, dtype)).eval()
        tensors = {
            name: torch.from_numpy(checkpoint.read(name)).to(getattr(torch, dtype))
            for name in checkpoint.tensors
        }
        self._model.load_state_dict(tensors, assign=True, strict=False)
        self._model.tie_weights()
        self._cache: Any = None

    def prompt(self, ids: Sequence[int]) -> float:
        """Begin anew with a prompt."""
        from transformers import DynamicCache  # noqa: PLC0415 - this contender only

        self._cache = DynamicCache(config=self._config)
        return self._timed(ids)

    def steps(self, ids: Sequence[int]) -> list[float]:
        """Go on one row at a time."""
        return [self._timed([one]) for one in ids]

    def _timed(self, ids: Sequence[int]) -> float:
        rows = self._torch.tensor([ids])
        begin = time.perf_counter()
        with self._torch.inference_mode():
            self._model(input_ids=rows, cache=self._cache, use_cache=True)
        return time.perf_counter() - begin


class Memory:
    """How fast this machine reads memory: a sum over half a GiB, by one thread."""

    def __init__(self) -> None:
        """Touch every page once."""
        self._block = np.ones(_FLOOR_BYTES // 4, dtype=np.float32)

    def bytes_a_second(self) -> float:
        """Read it all once."""
        begin = time.perf_counter()
        self._block.sum()
        return _FLOOR_BYTES / (time.perf_counter() - begin)
