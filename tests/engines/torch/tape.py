"""A CUDA graph's twin on the host: refuses what a capture refuses, and repeats operations as one.

It runs no kernel of a device; what only a GPU can show is in tests/gpu.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Work = Callable[[], torch.Tensor]

__all__ = ["Tape", "TapeRecorder"]

# A tensor made of the host's own numbers: on a device a copy, which a capture refuses or, worse,
# records with the numbers of this one round.
_FROM_HOST = ("aten::lift_fresh", "aten::lift", "aten::lift_fresh_copy")
_READS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class TapeRecorder:
    """In the place of ``CudaRecorder``.

    Attributes:
        operations: How many each recording has, in order.
    """

    def __init__(self) -> None:
        self.operations: list[int] = []

    def first(self, work: Work) -> torch.Tensor:
        """Run it."""
        return work()

    def record(self, work: Work) -> Work:
        """Note the operations of a call that changes no memory, and return what repeats them."""
        tape = Tape()
        try:
            with tape, _unread():
                result = work()
        finally:
            tape.undo()
        self.operations.append(len(tape.steps))

        def repeat() -> torch.Tensor:
            tape.repeat()
            return result

        return repeat


class Tape(TorchDispatchMode):
    """Runs operations and notes them with the memory that they read and wrote.

    Attributes:
        steps: Function, arguments, named arguments and result of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, in its parts where it has some."""
        del types
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        _refuse(func, args)
        for one in _written(func, args, kwargs):
            self._keep(one)
        result = func(*args, **kwargs)
        self.steps.append((func, args, kwargs, result))
        return result

    def undo(self) -> None:
        """Give all memory that was written to what it held before."""
        for memory, before in self._before.values():
            memory.copy_(before)

    def repeat(self) -> None:
        """Run the operations again, with the same memory for every result."""
        for func, args, kwargs, results in self.steps:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(results), _tensors(again), strict=True):
                if _memory(old).data_ptr() != _memory(new).data_ptr():
                    old.copy_(new)

    def _keep(self, tensor: torch.Tensor) -> None:
        """Remember what the tensor's memory held when it was first written to."""
        memory = _memory(tensor)
        if memory.data_ptr() not in self._before:
            self._before[memory.data_ptr()] = memory, memory.clone()


@contextlib.contextmanager
def _unread() -> Iterator[None]:
    """Let what reads a tensor of the host without an operation fail: a device's is copied first."""
    ways = {name: getattr(torch.Tensor, name) for name in ("tolist", "numpy", "__array__")}

    def read(*_: object) -> None:
        raise RuntimeError("expected work that a graph can record, got a read on the host")

    try:
        for name in ways:
            setattr(torch.Tensor, name, read)
        yield
    finally:
        for name, way in ways.items():
            setattr(torch.Tensor, name, way)


def _refuse(func: Any, args: tuple[Any, ...]) -> None:
    """Raise where the host would read a value, or where a shape would depend on one."""
    by_mask = any(
        isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8)
        for one in tree_leaves(args[1:])
    )
    named = func._schema.name
    indexed = named in ("aten::index", "aten::index_put", "aten::index_put_")
    reads = by_mask if indexed else any(tag in func.tags for tag in _READS)
    if reads or named in _FROM_HOST:
        raise RuntimeError(f"expected work that a graph can record, got {func}")


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operation writes to."""
    written = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            written += _tensors(value)
    return written


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor's memory as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
