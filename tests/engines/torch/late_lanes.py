"""Lanes whose side copies nothing until somebody waits for it: the slowest device there can be.

A wait that is missing, or memory that is used again too early, then shows as wrong rows. The
computing lane does at once what it is told.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagelink_torch.lanes import Mark

__all__ = ["LateLanes"]


class LateLanes:
    """Implements ``stagelink_torch.lanes.Lanes``.

    Attributes:
        copies: Those of the side lane that were not made yet, in order.
    """

    def __init__(self) -> None:
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._made = 0

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return plain memory."""
        return torch.zeros(shape, dtype=dtype)

    @contextlib.contextmanager
    def side(self) -> Iterator[None]:
        """Keep copies for later."""
        with _Later(self.copies):
            yield

    def mark_side(self) -> _LateMark:
        """Mark the copies so far."""
        return _LateMark(self, self._made + len(self.copies))

    def mark_compute(self) -> _LateMark:
        """Mark what was done when it was said."""
        return _LateMark(self, 0)

    def side_waits(self, mark: Mark) -> None:
        """Do nothing: the computing lane is never late."""

    def compute_waits(self, mark: Mark) -> None:
        """Make the copies before the mark."""
        mark.synchronize()

    def make_up_to(self, count: int) -> None:
        """Make copies until so many are made."""
        while self._made < count:
            target, source = self.copies.pop(0)
            target.copy_(source)
            self._made += 1


class _LateMark:
    """A mark behind ``count`` copies."""

    def __init__(self, lanes: LateLanes, count: int) -> None:
        self._lanes, self._count = lanes, count

    def synchronize(self) -> None:
        """Make the copies before it."""
        self._lanes.make_up_to(self._count)


class _Later(TorchDispatchMode):
    """Notes copies in the place of making them; views are made."""

    def __init__(self, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._copies = copies

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Take one operation."""
        del types
        if func is torch.ops.aten.copy_.default:
            self._copies.append((args[0], args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))
