"""Finds an installed engine by name, says which one is the best here, and what a missing one needs.

It makes no engine and imports only the one that is asked for; which is best is told from what is
installed, without importing any framework.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagelink.engine import StageEngine

GROUP = "stagelink.engines"
# Functions that say what a stage's process needs in its environment before the engine is imported.
ENVIRONMENTS_GROUP = "stagelink.environments"


class _Own(NamedTuple):
    """One of the engines that stagelink's own distributions bring."""

    module: str
    attribute: str
    # What it computes with, and the extra of stagelink that brings both.
    library: str
    extra: str
    # Whether it computes on a GGUF's blocks as they are stored, and needs no conversion of it.
    on_stored_blocks: bool = False


# Looked up directly: reading the metadata of every installed package takes long.
_OWN = {
    "numpy": _Own("stagelink_numpy", "NumpyEngine", "numpy", "cpu"),
    "torch": _Own("stagelink_torch", "TorchEngine", "torch", "torch"),
    "mlx": _Own("stagelink_mlx", "MlxEngine", "mlx", "mlx"),
    "transformers": _Own(
        "stagelink_transformers", "TransformersEngine", "transformers", "transformers"
    ),
    "llamacpp": _Own(
        "stagelink_llamacpp", "LlamaCppEngine", "llama_cpp", "llamacpp", on_stored_blocks=True
    ),
}
# What a stage calls on every engine; `stagelink.engine.StageEngine` says what each does.
_METHODS = ("describe", "load", "run", "run_first", "run_head", "keep", "close")
# Where a driver for CUDA shows itself, on Linux and under Windows' own Linux.
_CUDA_PATHS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def find_engine(name: str) -> Callable[..., StageEngine]:
    """Return the factory of an engine; see `stagelink.engine.StageEngine` for its arguments.

    Args:
        name: The name of an installed engine, or ``module:Class`` of one that is only importable.

    Raises:
        ConfigError: ``engine_unknown`` where no such engine is installed, ``engine_import``
            where it is but does not import, ``engine_kind`` where what it names is no engine.
    """
    try:
        found = _import(name)
    except (ImportError, OSError) as error:
        # OSError: a native library beside the module is missing or broken.
        raise ConfigError(
            f"engine {name!r} does not import: {error}{_advice(name)}", reason="engine_import"
        ) from error
    if not _makes_engines(found):
        raise ConfigError(
            f"engine {name!r}: expected a class with {', '.join(_METHODS)}, got another"
            f" {'class' if isinstance(found, type) else type(found).__name__};"
            " name the engine's own class",
            reason="engine_kind",
        )
    return found


def check_engine(name: str) -> None:
    """Refuse an engine that is not installed, without importing it; raises as `find_engine`."""
    own = _OWN.get(name)
    if own is None:
        if ":" not in name and not _points(name):
            raise _unknown(name)
    elif not _is_there(own.module):
        raise _unknown(name)
    elif not _is_there(own.library):
        raise ConfigError(
            f"engine {name!r} needs {own.library}, which is not installed{_advice(name)}",
            reason="engine_import",
        )


def engine_environment(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what an engine needs in the environment before its process starts; mostly nothing.

    Args:
        name: The engine's.
        environ: The environment that the process would have.

    Raises:
        ConfigError: What the engine's own function raises.
    """
    for point in importlib.metadata.entry_points(group=ENVIRONMENTS_GROUP, name=name):
        asked: Callable[[Mapping[str, str]], dict[str, str]] = point.load()
        return asked(environ)
    return {}


def reads_floats(name: str) -> bool:
    """Return whether an engine reads a checkpoint's tensors as floats: all do but our llamacpp."""
    own = _OWN.get(name)
    return own is None or not own.on_stored_blocks


def engine_names() -> list[str]:
    """Names of all installed engines, sorted."""
    found = importlib.metadata.entry_points(group=GROUP)
    own = {name for name, one in _OWN.items() if _is_there(one.module)}
    return sorted({*own, *(point.name for point in found)})


def best_engine() -> str:
    """Return the fastest engine that is installed here and takes unquantized checkpoints.

    torch where it has CUDA, then mlx on a Mac with Metal, then torch on the CPU, then numpy.
    """
    has_torch = _is_installed("torch")
    if has_torch and _has_cuda():
        return "torch"
    is_metal = sys.platform == "darwin" and platform.machine() == "arm64"
    if is_metal and _is_installed("mlx"):
        return "mlx"
    return "torch" if has_torch else "numpy"


def _import(name: str) -> Callable[..., StageEngine]:
    module, _, attribute = name.partition(":")
    own = _OWN.get(name)
    if own is not None and _is_there(own.module):
        module, attribute = own.module, own.attribute
    if attribute:
        imported = importlib.import_module(module)
        if not hasattr(imported, attribute):
            message = f"module {module} has no {attribute}"
            raise ImportError(message)
        found: Callable[..., StageEngine] = getattr(imported, attribute)
        return found
    for point in _points(name):
        pointed: Callable[..., StageEngine] = point.load()
        return pointed
    raise _unknown(name)


def _makes_engines(found: object) -> bool:
    """Of a function that makes engines only calling it would tell; a class has their methods."""
    if isinstance(found, type):
        return all(hasattr(found, method) for method in _METHODS)
    return callable(found)


def _points(name: str) -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=GROUP, name=name)


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        f"no engine is named {name!r}: installed are {', '.join(engine_names())}"
        f"{_advice(name) or '; use one of them'}",
        reason="engine_unknown",
    )


def _advice(name: str) -> str:
    own = _OWN.get(name)
    if own is not None:
        return f'; pip install "stagelink[{own.extra}]"'
    return "; its module has to be importable here" if ":" in name else ""


def _is_installed(name: str) -> bool:
    own = _OWN[name]
    return _is_there(own.module) and _is_there(own.library)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _has_cuda() -> bool:
    """A driver is there, and torch was not built without CUDA; neither is loaded to know it."""
    try:
        is_cpu_build = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return not is_cpu_build and any(path.exists() for path in _CUDA_PATHS)
