"""pytest plugin: the options that name an engine and a model, and the promises' fixtures.

It tests nothing itself, and does nothing in a run that does not ask for its fixtures.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink.engine import EngineSettings
    from stagelink_conformance.stages import Stages

# Engines and numpy are imported inside the fixtures: every pytest run loads this file, and most ask
# for nothing of it.

_GROUP = "stagelink.engines"
_MODEL = "stagelink_model"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("stagelink", "stagelink engine conformance")
    group.addoption("--stagelink-engine", default="numpy", help="entry point name or module:Class")
    group.addoption(
        "--stagelink-families",
        default="",
        help="tiny checkpoints, comma separated; all for every one that can be made here",
    )
    group.addoption("--stagelink-checkpoint", default="", help="a model instead of the tiny ones")
    group.addoption("--stagelink-dtype", default="float32", help="EngineSettings.dtype")
    group.addoption("--stagelink-tolerance", type=float, help="logits of two compositions")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every promise once for each model: of the options, the test module, or the tiny ones."""
    if _MODEL not in metafunc.fixturenames:
        return
    from stagelink_conformance.families import FAMILIES  # noqa: PLC0415 - see above
    from stagelink_conformance.token_families import TOKEN_FAMILIES  # noqa: PLC0415 - see above
    from stagelink_numpy.tiny import TINY  # noqa: PLC0415 - see above

    path = metafunc.config.getoption("--stagelink-checkpoint")
    families = metafunc.config.getoption("--stagelink-families")
    chosen = getattr(metafunc.module, "STAGELINK_FAMILIES", TINY)
    models = [path] if path else [name for name in families.split(",") if name] or list(chosen)
    if models == ["all"]:
        models = [*TINY, *(name for name in FAMILIES if name not in TINY)]
    # A module that names its own may make them itself, later than this.
    known = sorted({*TINY, *FAMILIES, *TOKEN_FAMILIES})
    unknown = [name for name in models if name not in known] if families and not path else []
    if unknown:
        message = f"expected tiny checkpoints of {known}, got {unknown}; choose some of those"
        raise pytest.UsageError(f"{message}, or a model of your own by --stagelink-checkpoint")
    metafunc.parametrize(_MODEL, models, indirect=True, scope="session")


@pytest.fixture(scope="session")
def stagelink_engine(pytestconfig: pytest.Config) -> Any:
    """Return the engine class under test."""
    name = pytestconfig.getoption("--stagelink-engine")
    if ":" in name:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)
    for entry in importlib.metadata.entry_points(group=_GROUP, name=name):
        return entry.load()
    known = sorted(entry.name for entry in importlib.metadata.entry_points(group=_GROUP))
    raise pytest.UsageError(f"no engine {name!r}; installed are {known}; or give module:Class")


@pytest.fixture(scope="session")
def stagelink_settings(pytestconfig: pytest.Config) -> EngineSettings:
    """Return the limits that the promises run with."""
    from stagelink.engine import EngineSettings  # noqa: PLC0415 - see above

    dtype = pytestconfig.getoption("--stagelink-dtype")
    return EngineSettings(dtype=dtype, context=160, streams_max=4, rows_max=96, chunk_rows=32)


@pytest.fixture(scope="session")
def stagelink_model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the path of a checkpoint: one of the tiny ones, or what the option names."""
    from stagelink_conformance.families import FAMILIES, make_family  # noqa: PLC0415 - see above
    from stagelink_conformance.token_families import TOKEN_FAMILIES  # noqa: PLC0415 - see above
    from stagelink_numpy.tiny import TINY, make_tiny  # noqa: PLC0415 - see above

    name = request.param
    if not any(name in one for one in (TINY, FAMILIES, TOKEN_FAMILIES)):
        return Path(name)
    folder = tmp_path_factory.mktemp("tiny") / name
    if name in TINY:
        return make_tiny(folder, name)
    pytest.importorskip("transformers", reason=f"the tiny {name} is made with transformers")
    return make_family(folder, name)


@pytest.fixture
def stages(
    stagelink_engine: Any,
    stagelink_model: Path,
    stagelink_settings: EngineSettings,
    pytestconfig: pytest.Config,
) -> Iterator[Stages]:
    """Make stages of the model under test; closed after the test."""
    from stagelink.engine import ConfigError  # noqa: PLC0415 - see above
    from stagelink_conformance.stages import Stages  # noqa: PLC0415 - see above

    tolerance = pytestconfig.getoption("--stagelink-tolerance")
    try:
        made = Stages(stagelink_engine, stagelink_model, stagelink_settings, tolerance)
    except ConfigError as error:
        if error.reason == "engine_family":
            pytest.skip(str(error))
        raise
    yield made
    made.close()
