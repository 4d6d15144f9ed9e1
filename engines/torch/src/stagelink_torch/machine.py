"""What this process computes on: device, dtypes, threads, libraries; settings become a setup.

It makes no layer. Refusals are ``ConfigError`` and come before any weights are read.
"""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING

import torch

from stagelink.engine import ConfigError
from stagelink_torch.layer import Setup
from stagelink_torch.refusal import CHECKS

if TYPE_CHECKING:
    from stagelink.engine import EngineSettings, Family

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def make_setup(family: Family, settings: EngineSettings) -> Setup:
    """Return the setup of checked settings.

    Raises:
        ConfigError: ``engine_dtype``, ``engine_device``, ``engine_limit`` or ``engine_threads``.
    """
    _check_limits(family, settings)
    device = _device(settings.device)
    if device.type == "cuda":
        settle_products()
    dtype = _dtype(settings.dtype, "dtype", device)
    kv_dtype = dtype
    if settings.kv_dtype != "auto":
        kv_dtype = _dtype(settings.kv_dtype, "kv_dtype", device)
    return Setup(
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        context=settings.context,
        slots=settings.streams_max,
        rows_max=settings.rows_max,
    )


def settle_products() -> None:
    """Let CUDA's products keep the precision of their dtype, and their kernels depend on shapes.

    torch's defaults and the environment may let float32 products round to TF32, and sums of 16-bit
    ones to 16 bits; cuBLAS chooses its sums by the workspace that it finds. The last is read when a
    process first multiplies on a device. cuDNN's attention makes a plan for every number of
    positions, which is another one in each round.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    products = torch.backends.cuda.matmul
    products.allow_tf32 = False
    products.allow_bf16_reduced_precision_reduction = False
    products.allow_fp16_reduced_precision_reduction = False
    products.allow_fp16_accumulation = False
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name on the wire."""
    return str(dtype).removeprefix("torch.")


def device_name(device: torch.device) -> str:
    """Return the device's own name, for people."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return platform.processor() or platform.machine() or "cpu"


def libraries(device: torch.device) -> str:
    """Return torch and what it multiplies with, with versions."""
    names = [f"torch {torch.__version__}"]
    if device.type == "cuda":
        names.append(f"CUDA {torch.version.cuda}")
    else:
        text = torch.__config__.show()
        found = re.search(r"Math Kernel Library Version ([\d.]+)", text)
        if found:
            names.append(f"MKL {found[1]}")
        found = re.search(r"MKL-DNN v([\d.]+)", text)
        if found:
            names.append(f"oneDNN {found[1]}")
        if len(names) == 1:
            names.append("another BLAS")
    return ", ".join(names)


def _check_limits(family: Family, settings: EngineSettings) -> None:
    """Refuse sizes that are none, and a context beyond the model's."""
    CHECKS.limits(family, settings)
    if settings.threads is not None and settings.threads < 1:
        raise ConfigError(
            f"torch engine: expected at least 1 thread, got {settings.threads}; change --threads",
            reason="engine_threads",
        )


def _device(name: str) -> torch.device:
    """Return the device that settings name; ``auto`` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:(0|[1-9][0-9]?))?", name):
        raise ConfigError(
            f"torch engine: expected device auto, cpu, cuda or cuda:N, got {name!r}; "
            "change --device, or use the engine that has it",
            reason="engine_device",
        )
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"torch engine: expected a CUDA device for {name!r}, got {count} of them; "
            "install torch with CUDA and a driver, or use --device cpu",
            reason="engine_device",
        )
    return device


def _dtype(name: str, setting: str, device: torch.device) -> torch.dtype:
    """Return a dtype by its name; float16 only where it is computed."""
    known = [one for one in DTYPES if one != "float16" or device.type == "cuda"]
    if name not in known:
        raise ConfigError(
            f"torch engine: expected {setting} {', '.join(known)} on {device.type}, got {name!r}; "
            "use one of them",
            reason="engine_dtype",
        )
    return DTYPES[name]
