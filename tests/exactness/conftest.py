"""The models of the exactness tests: one of each tiny family, and SmolLM2 with its weights shared.

It compares nothing.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.families import Tiny
from stagelink_conformance.pipeline import Pipeline
from stagelink_numpy import NumpyEngine
from stagelink_numpy.cache import Cache as KvCache
from stagelink_numpy.model import Model as Layers
from stagelink_numpy.tiny import TINY, make_tiny
from stagelink_numpy.weights import StageWeights, read_weights

if TYPE_CHECKING:
    from collections.abc import Sequence


class SharedWeights(NumpyEngine):
    """A stage that takes its layers out of weights that were read once, for many stages."""

    whole: StageWeights

    def load(self, progress: object = None) -> None:
        del progress
        layers = self.whole.layers[self._first : self._end]
        weights = StageWeights(layers, self.whole.ends if self._lead else None)
        cache = KvCache(self._family, len(layers), self._settings)
        self._loaded = Layers(self._family, weights, self._settings), cache


class Model:
    """One checkpoint, and pipelines over its layers."""

    def __init__(self, path: Path | str, **settings: int) -> None:
        self.checkpoint = open_checkpoint(path)
        self.family = read_family(self.checkpoint.config)
        self.settings = EngineSettings(**settings)
        layers = self.family.layers
        self._whole = read_weights(self.checkpoint, self.family, 0, layers, lead=True)

    def stage(self, first: int, end: int) -> NumpyEngine:
        """Make the layers ``first..end``; those from layer 0 are the lead's."""
        engine = SharedWeights(
            self.checkpoint, self.family, first, end, lead=first == 0, settings=self.settings
        )
        engine.whole = self._whole
        engine.load()
        return engine

    def split(self, cuts: Sequence[int] = ()) -> Pipeline:
        """Make stages that meet at ``cuts``."""
        borders = [0, *cuts, self.family.layers]
        return Pipeline([self.stage(first, end) for first, end in itertools.pairwise(borders)])


@pytest.fixture(scope="session", params=sorted(TINY))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Each tiny family in turn."""
    folder = make_tiny(tmp_path_factory.mktemp("tiny") / request.param, request.param)
    return Model(folder, context=256, streams_max=5, rows_max=128, chunk_rows=64)


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """SmolLM2-135M-Instruct."""
    return Model("smollm2", context=256, streams_max=5, rows_max=128, chunk_rows=64)


@pytest.fixture(scope="session")
def greedy() -> list[dict[str, Any]]:
    """Five prompts with the greedy ids that transformers gave in float32 (tests/data)."""
    path = Path(__file__).parents[1] / "data" / "smollm2_greedy.json"
    prompts: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["prompts"]
    return prompts


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Tiny checkpoints of the families that transformers makes."""
    return Tiny(tmp_path_factory.mktemp("families"))
