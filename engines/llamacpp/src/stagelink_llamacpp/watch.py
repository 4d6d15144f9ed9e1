"""Tells llama.cpp which nodes of its graph are wanted; the others cost a look-up each.

It moves no values. A graph of SmolLM2 has a thousand nodes, and llama.cpp asks about each of them
in every call: with a Python function that reads the name, that took a twentieth of a decode step.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

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
        self._known = _Known(library.get_name, names, take, scaling)
        # Declared with the first argument only, which is all that a look-up takes; where llama.cpp
        # passes more than a function reads, nothing happens to the others.
        self._function = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(self._known.__getitem__)
        kind = library.api.ggml_backend_sched_eval_callback
        self.callback: Any = ctypes.cast(self._function, kind)
        self._shape: tuple[int, ...] = ()

    @property
    def broken(self) -> BaseException | None:
        """What a look-up or ``take`` raised in the last call; the caller raises it again."""
        return self._known.broken

    @broken.setter
    def broken(self, error: BaseException | None) -> None:
        self._known.broken = error

    def expect(self, shape: tuple[int, ...]) -> bool:
        """Say what is computed next; return whether addresses of earlier calls are still used."""
        if shape != self._shape:
            self.forget()
            self._shape = shape
        return bool(self._known)

    def forget(self) -> None:
        """Read every name again in the next call."""
        self._known.clear()
        self._known.computed = 0


class _Known(dict[int, bool]):
    """Addresses of nodes that are not wanted; what is missing is looked at."""

    def __init__(
        self,
        get_name: Callable[[int], bytes],
        names: frozenset[bytes],
        take: Callable[[int, bytes], bool],
        scaling: Scaling | None,
    ) -> None:
        super().__init__()
        self._get_name, self._names, self._take = get_name, names, take
        self._scaling = scaling
        # The node that llama.cpp was told to compute, and of which it will say that it has.
        self.computed = 0
        self.broken: BaseException | None = None

    def __missing__(self, node: int) -> bool:
        try:
            return self._look(node)
        except BaseException as error:  # noqa: BLE001 - it cannot pass through C; raised after
            self.computed, self.broken = 0, error
            return False

    def _look(self, node: int) -> bool:
        name = self._get_name(node)
        if name not in self._names:
            # Its own are looked at each time: they may have been built anew.
            if self._scaling is None or not self._scaling.take(node):
                self[node] = False
            return False
        if node != self.computed:
            self.computed = node
            return True
        self.computed = 0
        return self._take(node, name)
