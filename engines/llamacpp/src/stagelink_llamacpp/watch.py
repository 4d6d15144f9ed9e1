"""Tells llama.cpp which nodes of its graph are wanted; the others cost a look-up each.

It moves no values. A graph of SmolLM2 has a thousand nodes, and llama.cpp asks about each of them
in every call: with a Python function that reads the name, that took a twentieth of a decode step,
and with one that only looks the address up a fiftieth.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from stagelink.engine import address_filter

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink_llamacpp.library import Library
    from stagelink_llamacpp.scaling import Scaling


class Watch:
    """Calls ``take(node, name)`` for nodes by name, each time that they have been computed.

    llama.cpp builds the graph of a call of one shape at the same place every time, so a node that
    was not wanted is known by its address until the shape changes. A wanted one is never known by
    its address alone: its name is read each time.

    Attributes:
        callback: For ``cb_eval`` of the context's parameters; lives as long as the context.
        data: For ``cb_eval_user_data``.
        broken: What a look-up or ``take`` raised in the last call; the caller raises it again.
    """

    def __init__(
        self,
        library: Library,
        names: frozenset[bytes],
        take: Callable[[int, bytes], bool],
        scaling: Scaling | None = None,
    ) -> None:
        """Watch for nodes called one of ``names``; ``take`` says whether to go on.

        ``scaling`` is asked about all others, until they are known not to be of its.
        """
        self._get_name, self._names, self._take = library.get_name, names, take
        self._scaling = scaling
        self.broken: BaseException | None = None
        # The node that llama.cpp was told to compute, and of which it will say that it has.
        self._computed = 0
        self._shape: tuple[int, ...] = ()
        kind = library.api.ggml_backend_sched_eval_callback
        self._function = kind(self._answer)
        self._filter = address_filter(ctypes.cast(self._function, ctypes.c_void_p).value or 0)
        self.callback: Any = kind(self._filter.callback)
        self.data = ctypes.c_void_p(self._filter.data)

    def expect(self, shape: tuple[int, ...]) -> bool:
        """Say what is computed next; return whether addresses of earlier calls are still used."""
        if shape != self._shape:
            self.forget()
            self._shape = shape
        return len(self._filter) > 0

    def forget(self) -> None:
        """Read every name again in the next call."""
        self._filter.clear()
        self._computed = 0

    def _answer(self, node: int, _ask: bool, _data: int | None) -> bool:
        try:
            return self._look(node)
        except BaseException as error:  # noqa: BLE001 - it cannot pass through C; raised after
            self._computed, self.broken = 0, error
            return False

    def _look(self, node: int) -> bool:
        name = self._get_name(node)
        if name not in self._names:
            # Its own are looked at each time: they may have been built anew.
            if self._scaling is None or not self._scaling.take(node):
                self._filter.add(node)
            return False
        if node != self._computed:
            self._computed = node
            return True
        self._computed = 0
        return self._take(node, name)
