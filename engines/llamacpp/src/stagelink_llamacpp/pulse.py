"""Tells from inside a long call of llama.cpp that it goes on, node by node of its graph.

It measures nothing and changes no value; short calls are left alone, since a step of a few
milliseconds should not ask Python about each node.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink_llamacpp.library import Library

# Fewer rows than this are a decode round or a verify.
ROWS_LONG = 32
_SECONDS = 0.5


class Pulse:
    """Calls ``beat`` twice a second while llama.cpp computes on the CPU.

    Attributes:
        beat: What to call, or ``None``. What it raises breaks the call off.
        broken: What it raised last.
    """

    def __init__(self, library: Library) -> None:
        """Make the callback; it lives as long as the context that gets it."""
        self.beat: Callable[[], None] | None = None
        self.broken: BaseException | None = None
        self._api = library.api
        kind = library.api.ggml_abort_callback
        self._callback = kind(self._tell)
        self._nothing = ctypes.cast(0, kind)
        self._is_set = False
        self._last = 0.0

    def watch(self, context: Any, rows: int) -> None:
        """Prepare a call of ``rows`` rows in a native context."""
        wanted = self.beat is not None and rows >= ROWS_LONG
        if wanted != self._is_set:
            callback = self._callback if wanted else self._nothing
            self._api.llama_set_abort_callback(context, callback, None)
            self._is_set = wanted
        self._last = time.monotonic()
        self.broken = None

    def _tell(self, _: object) -> bool:
        """Answer whether to break off."""
        now = time.monotonic()
        if self.beat is not None and now - self._last >= _SECONDS:
            self._last = now
            try:
                self.beat()
            except BaseException as error:  # noqa: BLE001 - it cannot pass through C; raised after
                self.broken = error
        return self.broken is not None
