"""What the environment of a stage's process must say before mlx is loaded: which BLAS multiplies.

It imports nothing of mlx and changes nothing; a launcher puts what it returns into the child's
environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stagelink.engine import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["BLAS_VARIABLE", "stage_environment"]

BLAS_VARIABLE = "STAGELINK_MLX_BLAS"
_STOCK = "stock"
_PRELOAD = "LD_PRELOAD"
# Where distributions put an OpenBLAS that exports the plain names (numpy's own has others). The
# variant with threads of its own comes first: an OpenMP one waits for a runtime that is not there.
_PLACES = (
    "/usr/lib/{machine}-linux-gnu/openblas-pthread/libopenblas.so.0",
    "/usr/lib/{machine}-linux-gnu/openblas-serial/libopenblas.so.0",
    "/usr/lib/{machine}-linux-gnu/openblas-openmp/libopenblas.so.0",
    "/usr/lib64/libopenblasp.so.0",
    "/usr/lib64/libopenblas.so.0",
    "/usr/lib/libopenblas.so.0",
)


def stage_environment(
    environ: Mapping[str, str] | None = None, *, places: Iterable[str] = _PLACES
) -> dict[str, str]:
    """Return what a launcher sets in the environment of a stage's process that runs this engine.

    The Linux wheel of MLX's CPU build brings the reference BLAS, twenty times slower than OpenBLAS
    on a prompt. Where the system has OpenBLAS, the answer preloads it; what was to be preloaded
    already stays. ``STAGELINK_MLX_BLAS=stock`` turns that off, and a path names another library.
    Elsewhere the answer is empty.

    Args:
        environ: The environment that the process would get; this process's own by default.
        places: Where to look, ``{machine}`` being the architecture.

    Raises:
        ConfigError: ``blas_library`` where the path that the variable names is no file, or cannot
            stand in ``LD_PRELOAD``.
    """
    environ = os.environ if environ is None else environ
    wish = environ.get(BLAS_VARIABLE, "")
    if not sys.platform.startswith("linux") or wish == _STOCK:
        return {}
    machine = os.uname().machine
    found = [place.format(machine=machine) for place in places]
    library = _wished(wish) if wish else next((one for one in found if Path(one).is_file()), None)
    before = environ.get(_PRELOAD, "")
    if library is None or library in before.replace(" ", ":").split(":"):
        return {}
    return {_PRELOAD: f"{library}:{before}" if before else library}


def _wished(path: str) -> str:
    """Return the path that the variable names; the loader splits its list at colons and spaces."""
    if not Path(path).is_file() or ":" in path or " " in path:
        raise ConfigError(
            f"{BLAS_VARIABLE}: expected {_STOCK} or the path of a library, without colon or space, "
            f"got {path!r}; change it, or leave it out",
            reason="blas_library",
        )
    return path
