"""llama.cpp's shared library through the ctypes layer of llama-cpp-python, and what it says.

It knows no model. Nothing of llama.cpp reaches the terminal: every line goes to the debug log.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from stagelink.engine import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger("stagelink.llamacpp")
_PACKAGE, _BINDINGS = "llama-cpp-python", "llama_cpp.llama_cpp"
_INSTALL = 'pip install "stagelink[llamacpp]"'
# ggml's level of an error; 3 is that of a warning.
_ERROR = 4
# Said once for a model of which something is copied, with how much that was.
_REORDERED = "_REPACK model buffer size"
_F32 = 0
_LINES_KEPT = 8
_LINE_CHARS_MAX = 300


class _TypeTraits(ctypes.Structure):
    """``ggml_type_traits``: what ggml knows of one type."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
    )


class Library:
    """The native functions; one for a process, since the library's log is the process's.

    Attributes:
        api: Module ``llama_cpp.llama_cpp``: structures and llama.h.
        get_name: ``ggml_get_name(tensor) -> bytes``.
        get_bytes: ``ggml_nbytes(tensor) -> int``.
        get_data: ``ggml_backend_tensor_get(tensor, target, offset, size)``.
        set_data: ``ggml_backend_tensor_set(tensor, source, offset, size)``.
        said: What the library gave as the reason of the last failure.
        reordered: How many times it copied weights into another order for this processor.
    """

    def __init__(self) -> None:
        """Load the library and take over its log.

        Raises:
            ConfigError: ``engine_import`` where it is not installed or does not load.
        """
        # An assertion of the library would start a debugger on this process before it ends.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        try:
            self.api: Any = _bindings()
        except (ImportError, OSError, RuntimeError) as error:
            raise ConfigError(
                f"llamacpp engine: expected {_PACKAGE} to load, got {error}; run: {_INSTALL}",
                reason="engine_import",
            ) from None
        native = self.api._lib  # noqa: SLF001 - the handle whose dependencies hold ggml's functions
        self.native: Any = native
        self.get_name = native.ggml_get_name
        self.get_name.argtypes, self.get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
        self.get_bytes = native.ggml_nbytes
        self.get_bytes.argtypes, self.get_bytes.restype = [ctypes.c_void_p], ctypes.c_size_t
        self.get_data = native.ggml_backend_tensor_get
        self.get_data.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_size_t,
        ]
        self.get_data.restype = None
        self.set_data = native.ggml_backend_tensor_set
        self.set_data.argtypes, self.set_data.restype = self.get_data.argtypes, None
        self.said = ""
        self.reordered = 0
        self._lines: collections.deque[str] = collections.deque(maxlen=_LINES_KEPT)
        # The library keeps the pointer: the object must live as long.
        self._callback = self.api.llama_log_callback(self._take_line)
        self.api.llama_log_set(self._callback, None)
        self.api.llama_backend_init()

    @property
    def versions(self) -> str:
        """What computes: package and library."""
        version = self.api.llama_version().decode(errors="replace")
        return f"llama.cpp {version}, {_PACKAGE} {importlib.metadata.version(_PACKAGE)}"

    @property
    def features(self) -> tuple[str, ...]:
        """The instruction sets and options that this build uses here, sorted."""
        told = self.api.llama_print_system_info().decode(errors="replace")
        facts = told.replace("CPU :", "").split("|")
        return tuple(sorted(one.split("=")[0].strip() for one in facts if one.strip()[-1:] == "1"))

    def dequantizer(self, kind: int) -> Callable[[int, int, int], None]:
        """Return what makes float32 of a type's stored values: (source, target, values).

        Raises:
            EngineError: ``native`` for a type that it cannot read, or a structure that is not the
                one which is read here.
        """
        if kind == _F32:
            return _copy_floats
        native = self.native
        native.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)
        native.ggml_blck_size.restype = ctypes.c_int64
        native.ggml_type_size.restype = ctypes.c_size_t
        traits = native.ggml_get_type_traits(kind).contents
        sizes = native.ggml_blck_size(kind), native.ggml_type_size(kind)
        if (traits.block, traits.bytes) != sizes or not traits.to_float:
            raise self.failure(f"to read rows of type {kind}", "use another version", "native")
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        made: Callable[[int, int, int], None] = function(traits.to_float)
        return made

    def failure(self, expected: str, advice: str, reason: str) -> EngineError:
        """Return the error of a native call that failed, with what the library last said."""
        self.said = "; ".join(self._lines) or "no reason given"
        self._lines.clear()
        text = f"llamacpp engine: expected {expected}, got: {self.said}; {advice}"
        return EngineError(" ".join(text.split()), reason=reason)

    def _take_line(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace").strip()[:_LINE_CHARS_MAX]
        if not line:
            return
        _LOG.debug("%s", line)
        self.reordered += _REORDERED in line
        if level == _ERROR:
            self._lines.append(line)


def _copy_floats(source: int, target: int, values: int) -> None:
    ctypes.memmove(target, source, ctypes.sizeof(ctypes.c_float) * values)


def _bindings() -> Any:
    """Return the module with llama.h's functions, without the package around it.

    Importing the package brings chat templates and what they need: 4 MiB, and a third of a second.
    """
    name = _BINDINGS.partition(".")[0]
    if name in sys.modules:
        return importlib.import_module(_BINDINGS)
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ImportError(f"no module {name}")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module(_BINDINGS)
    finally:
        # Whoever imports the package gets all of it.
        del sys.modules[name]


@functools.cache
def library() -> Library:
    """Return the process's library; it is loaded at the first call."""
    return Library()
