"""Finds the device that a stage was told to compute on among those that this llama.cpp has.

It loads nothing onto one.
"""

from __future__ import annotations

import ctypes
import dataclasses
import platform
from typing import TYPE_CHECKING, Any

from stagelink.engine import ConfigError

if TYPE_CHECKING:
    from stagelink_llamacpp.library import Library

# The names that users say, and what llama.cpp calls the backend.
_BACKENDS = {
    "cuda": ("CUDA",),
    "metal": ("Metal", "MTL"),
    "vulkan": ("Vulkan",),
    "rocm": ("ROCm", "HIP"),
}
# ggml_backend_dev_type: a GPU with its own memory, and one that shares the host's.
_GPUS = (1, 2)
_ALL_LAYERS = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """Where a stage computes.

    Attributes:
        kind: ``"cpu"``, ``"cuda"``, ...: a part of the engine's backend name.
        name: For people.
        handle: llama.cpp's device, or ``None`` for the CPU.
    """

    kind: str
    name: str
    handle: int | None = None

    @property
    def layers_there(self) -> int:
        """``n_gpu_layers``: all or none."""
        return 0 if self.handle is None else _ALL_LAYERS

    def handles(self) -> ctypes.Array[ctypes.c_void_p]:
        """Return the null-terminated list that llama.cpp takes: this device and no other."""
        chosen = [] if self.handle is None else [self.handle]
        return (ctypes.c_void_p * (len(chosen) + 1))(*chosen, None)


def find_device(library: Library, asked: str) -> Device:
    """Return the device: ``"auto"`` is the first GPU, else the CPU; ``"cuda:1"`` is the second.

    Raises:
        ConfigError: ``engine_device`` for one that this build or this machine does not have.
    """
    cpu = Device("cpu", platform.processor() or platform.machine() or "cpu")
    kind, _, number = asked.partition(":")
    if kind == "cpu" and not number:
        return cpu
    found = [one for one in _gpus(library) if kind in ("auto", one.kind)]
    if kind == "auto" and not number:
        return found[0] if found else cpu
    index = int(number) if number.isdecimal() else 0
    if kind in _BACKENDS and (not number or number.isdecimal()) and index < len(found):
        return found[index]
    have = ", ".join(["cpu", *(one.kind for one in _gpus(library))])
    advice = f"install a build of llama-cpp-python for {kind}" if kind in _BACKENDS else "change it"
    raise ConfigError(
        f"llamacpp engine: expected device auto or one of {have} (all that this build of "
        f"llama-cpp-python finds here), got {asked!r}; {advice}, or use --device cpu",
        reason="engine_device",
    )


def _gpus(library: Library) -> list[Device]:
    native = library.native
    text = ctypes.c_char_p
    count = _typed(native.ggml_backend_dev_count, [], ctypes.c_size_t)
    get = _typed(native.ggml_backend_dev_get, [ctypes.c_size_t], ctypes.c_void_p)
    kind_of = _typed(native.ggml_backend_dev_type, [ctypes.c_void_p], ctypes.c_int)
    describe = _typed(native.ggml_backend_dev_description, [ctypes.c_void_p], text)
    registry = _typed(native.ggml_backend_dev_backend_reg, [ctypes.c_void_p], ctypes.c_void_p)
    name_of = _typed(native.ggml_backend_reg_name, [ctypes.c_void_p], text)
    devices = []
    for handle in (get(index) for index in range(count())):
        backend = name_of(registry(handle)).decode(errors="replace")
        kind = next((kind for kind, names in _BACKENDS.items() if backend in names), None)
        if kind_of(handle) in _GPUS and kind is not None:
            devices.append(Device(kind, describe(handle).decode(errors="replace"), handle))
    return devices


def _typed(function: Any, arguments: list[Any], result: Any) -> Any:
    function.argtypes, function.restype = arguments, result
    return function
