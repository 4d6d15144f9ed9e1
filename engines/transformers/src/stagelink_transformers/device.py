"""Turns the settings into a torch device and dtype, and says what computes.

It allocates nothing.
"""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Final

import torch
import transformers

from stagelink_transformers.refusal import refuse_config

if TYPE_CHECKING:
    from stagelink.engine import EngineSettings

DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CUDA = re.compile(r"cuda(:(0|[1-9][0-9]?))?")


def choose_device(settings: EngineSettings) -> torch.device:
    """Return the device to compute on.

    Raises:
        ConfigError: ``engine_device``.
    """
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if _CUDA.fullmatch(name):
        device = torch.device(name)
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) < count:
            return device
        got = f"{name} where torch sees {count} CUDA devices"
        raise refuse_config("engine_device", "a device that is there", got, "use --device cpu")
    raise refuse_config("engine_device", "auto, cpu or cuda", repr(name), "change --device")


def choose_dtype(settings: EngineSettings) -> torch.dtype:
    """Return the compute and row dtype.

    Raises:
        ConfigError: ``engine_dtype``.
    """
    wanted = ", ".join(DTYPES)
    if settings.dtype not in DTYPES:
        got = repr(settings.dtype)
        raise refuse_config("engine_dtype", f"one of {wanted}", got, "change --dtype")
    if settings.kv_dtype not in ("auto", settings.dtype):
        expected = f"a KV of auto or {settings.dtype}"
        raise refuse_config("engine_dtype", expected, repr(settings.kv_dtype), "change --kv-dtype")
    return DTYPES[settings.dtype]


def device_name(device: torch.device) -> str:
    """Return the device's own name, for people."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return platform.processor() or platform.machine() or "cpu"


def libraries() -> str:
    """Return the versions of what computes."""
    mkl = re.search(r"Math Kernel Library Version (\d+(?:\.\d+)*)", torch.__config__.show())
    blas = f", MKL {mkl[1]}" if mkl else ""
    return f"torch {torch.__version__}{blas}, transformers {transformers.__version__}"
