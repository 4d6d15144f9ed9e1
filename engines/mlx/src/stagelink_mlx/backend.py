"""What MLX computes on in this process: the device, and on a CPU which BLAS multiplies.

It chooses and describes; the engine runs everything on the device that is chosen here.
"""

from __future__ import annotations

import ctypes
import dataclasses
import platform
from pathlib import Path

import mlx.core as mx

from stagelink.engine import ConfigError
from stagelink_mlx.library import library_version

__all__ = ["Backend", "blas_name", "choose_backend", "use_threads"]


@dataclasses.dataclass(frozen=True, slots=True)
class Backend:
    """Where and with what an engine computes.

    Attributes:
        name: ``"mlx-cpu"``, ``"mlx-metal"`` or ``"mlx-cuda"``.
        device: MLX's own.
        title: The device's name, for people.
        libraries: Versions of all that may change bits.
    """

    name: str
    device: mx.Device
    title: str
    libraries: str


def choose_backend(device: str) -> Backend:
    """Choose by the setting ``device``: ``auto``, ``cpu``, ``metal`` or ``cuda``.

    Raises:
        ConfigError: ``engine_device`` for another name, or a device that this MLX does not have.
    """
    has = {"metal": mx.metal.is_available(), "cuda": mx.cuda.is_available(), "cpu": True}
    wanted = next(name for name, there in has.items() if there) if device == "auto" else device
    if not has.get(wanted, False):
        here = " or ".join(name for name, there in has.items() if there)
        raise ConfigError(
            f"mlx engine: expected device auto, {here}, got {device!r}; "
            "mlx has metal on Apple silicon, and cuda with mlx[cuda]",
            reason="engine_device",
        )
    versions = [f"{name} {library_version(name)}" for name in ("mlx", "mlx-lm")]
    if wanted == "cpu":
        # On a CPU a fused operation is compiled by the system's compiler, seconds each, into a
        # folder that every user of the machine can write; unfused it has the same bits.
        mx.disable_compile()
        title = platform.processor() or platform.machine() or "cpu"
        return Backend("mlx-cpu", mx.Device(mx.cpu), title, ", ".join([*versions, blas_name()]))
    title = str(mx.device_info().get("device_name", wanted))
    return Backend(f"mlx-{wanted}", mx.Device(mx.gpu), title, ", ".join([*versions, title]))


class _Found(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def blas_name() -> str:
    """Say which BLAS multiplies on the CPU: ``"OpenBLAS 0.3.21"``, ``"reference BLAS"``.

    mlx's own library is loaded privately, so a ``cblas_sgemm`` that every library can see is one
    that was preloaded, and stands before mlx's.
    """
    if platform.system() == "Darwin":
        return "Accelerate"
    everybody = ctypes.CDLL(None)
    try:
        multiply, locate = everybody.cblas_sgemm, everybody.dladdr
    except AttributeError:
        return "reference BLAS"
    found = _Found()
    locate.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Found))
    address = ctypes.cast(multiply, ctypes.c_void_p)
    if locate(address, ctypes.byref(found)) == 0 or found.file is None:
        return "preloaded BLAS"
    return _openblas(everybody) or f"preloaded BLAS {Path(found.file.decode()).name}"


def _openblas(everybody: ctypes.CDLL) -> str | None:
    """Return name and version of an OpenBLAS that every library sees."""
    try:
        describe = everybody.openblas_get_config
    except AttributeError:
        return None
    describe.restype = ctypes.c_char_p
    words = (describe() or b"").decode(errors="replace").split()
    return " ".join(words[:2]) or None


def use_threads(threads: int | None) -> None:
    """Let a preloaded OpenBLAS use so many threads; nothing else of MLX's CPU build has several."""
    everybody = ctypes.CDLL(None)
    if threads is not None and hasattr(everybody, "openblas_set_num_threads"):
        everybody.openblas_set_num_threads(ctypes.c_int(threads))
