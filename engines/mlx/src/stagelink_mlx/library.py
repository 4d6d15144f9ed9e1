"""Imports the modules of mlx_lm that hold layers, and nothing else of it.

It builds no layer. mlx_lm's package imports its server, its converters and with them transformers,
and torch where that is installed: seconds, and hundreds of megabytes, of which a stage needs none.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stagelink.engine import ConfigError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = ["library_version", "models_module"]

_PACKAGE = "mlx_lm"


class _Package(ModuleType):
    """mlx_lm, whose own file runs when somebody first asks the package itself for a name."""

    def __getattr__(self, name: str) -> Any:
        """Run the package's own file, once, and answer from what it left."""
        spec: ModuleSpec | None = self.__dict__.pop("_waiting", None)
        if spec is None or spec.loader is None or name.startswith("__"):
            if spec is not None:
                self.__dict__["_waiting"] = spec
            message = f"module {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        spec.loader.exec_module(self)
        return getattr(self, name)


def models_module(name: str) -> ModuleType:
    """Return ``mlx_lm.models.NAME``.

    Raises:
        ConfigError: ``engine_family`` where this mlx_lm has no such module.
    """
    if _PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(_PACKAGE)
        if spec is not None:
            package = _Package(_PACKAGE)
            package.__dict__.update(
                __spec__=spec,
                __path__=list(spec.submodule_search_locations or ()),
                __file__=spec.origin,
                __loader__=spec.loader,
                __package__=_PACKAGE,
                _waiting=spec,
            )
            sys.modules[_PACKAGE] = package
    try:
        return importlib.import_module(f"{_PACKAGE}.models.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"mlx engine: expected {_PACKAGE}.models.{name}, got {_PACKAGE} {library_version()} "
            f'without it ({error}); pip install --upgrade "stagelink[mlx]"',
            reason="engine_family",
        ) from error


def library_version(name: str = "mlx-lm") -> str:
    """Return the version of a distribution, or ``"none"``."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
