"""What the settings ask of llama.cpp, checked before anything is loaded.

It loads no model and reads no weights.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from stagelink.engine import ConfigError
from stagelink_llamacpp.context import KV_TYPES
from stagelink_llamacpp.devices import find_device

if TYPE_CHECKING:
    from stagelink.engine import EngineSettings, Family
    from stagelink_llamacpp.devices import Device
    from stagelink_llamacpp.library import Library

_DTYPE = "float32"
# Rows are computed in float32 whatever the KV is; half of it costs few bits and half the time.
_KV_DEFAULT = "float16"
_THREADS_MAX = 512
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """How a stage computes.

    Attributes:
        device: Where.
        kv: One of ``context.KV_TYPES``.
        threads: Compute threads.
    """

    device: Device
    kv: str
    threads: int


def read_setup(library: Library, family: Family, settings: EngineSettings) -> Setup:
    """Return what the settings ask.

    Raises:
        ConfigError: ``engine_dtype``, ``engine_limit``, ``engine_threads``,
            ``engine_device`` or ``engine_invariance``.
    """
    if settings.dtype != _DTYPE:
        raise _refuse("engine_dtype", f"dtype {_DTYPE} for rows", settings.dtype, "use float32")
    kv = _KV_DEFAULT if settings.kv_dtype == "auto" else settings.kv_dtype
    if kv not in KV_TYPES:
        wanted = f"KV dtype auto, {' or '.join(KV_TYPES)}"
        raise _refuse("engine_dtype", wanted, settings.kv_dtype, "use auto")
    if settings.batch_invariant:
        advice = "use the numpy or the torch engine, or leave it off"
        raise _refuse("engine_invariance", "batch_invariant off", True, advice)
    most = {
        "context": family.context,
        "streams_max": int(library.api.llama_max_parallel_sequences()),
    }
    for name in ("context", "streams_max", "rows_max", "chunk_rows"):
        value, limit = getattr(settings, name), most.get(name)
        if value < 1 or (limit is not None and value > limit):
            wanted = f"{name} of at least 1" + (f" and at most {limit}" if limit else "")
            raise _refuse("engine_limit", wanted, value, "change it")
    return Setup(find_device(library, settings.device), kv, _threads(settings))


def _threads(settings: EngineSettings) -> int:
    threads = settings.threads
    if threads is None:
        told = [os.environ.get(name, "") for name in _THREADS]
        found = [int(one) for one in told if one.isdecimal() and int(one) > 0]
        threads = found[0] if found else os.cpu_count() or 1
        return min(threads, _THREADS_MAX)
    if not 1 <= threads <= _THREADS_MAX:
        raise _refuse("engine_threads", f"1 to {_THREADS_MAX} threads", threads, "change --threads")
    return threads


def _refuse(reason: str, expected: str, got: object, advice: str) -> ConfigError:
    text = f"llamacpp engine: expected {expected}, got {got!r}; {advice}"
    return ConfigError(text, reason=reason)
