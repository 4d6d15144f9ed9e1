"""The own tensors of a stage, read once each into aligned memory on the device, with progress.

It knows no layer: a family's file says which tensors it wants, and how they are fused.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

import numpy as np
import torch

from stagelink.engine import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stagelink.engine import Checkpoint
    from stagelink_torch.layer import Setup

    Progress = Callable[[int, int], None]

# What torch aligns its own CPU memory to, and what the bits of a one-row product may depend on.
ALIGNMENT = 64
# Tensors below SMALL are not worth a place, those from LARGE on have a block of their own.
SMALL, LARGE = 1 << 18, 16 << 20
_BLOCK_BYTES = 64 << 20


class TensorReader:
    """Reads tensors of a checkpoint; ``layer`` stands at one layer, ``StageReader`` at the model.

    Implements ``stagelink_torch.layer.Weights``.
    """

    def __init__(self, source: StageReader, prefix: str) -> None:
        """Stand at ``prefix``: what every name is preceded by."""
        self._source = source
        self._prefix = prefix

    def has(self, name: str) -> bool:
        """Whether the checkpoint has the tensor."""
        return self._source.has(self._prefix + name)

    def read(self, *names: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the tensors along their first dimension in one block; see the interface."""
        return self._source.read([self._prefix + name for name in names], dtype)

    def stack(self, groups: Sequence[Sequence[str]]) -> torch.Tensor:
        """Return ``[len(groups), ...]``, each group as ``read`` has it."""
        return self._source.stack([[self._prefix + name for name in group] for group in groups])


class StageReader:
    """The tensors of one stage; counts the bytes as held."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        setup: Setup,
        float32: Sequence[str],
        total: int,
        progress: Progress | None,
    ) -> None:
        """Take what ``held_bytes`` said as ``total``; ``float32`` ends names kept in float32."""
        self._checkpoint = checkpoint
        self._setup = setup
        self._float32 = tuple(float32)
        self._total = total
        self._done = 0
        self._progress = progress
        self._memory = WeightMemory(setup.device)

    def at(self, prefix: str) -> TensorReader:
        """Return a reader of the names that begin with ``prefix``."""
        return TensorReader(self, prefix)

    def has(self, name: str) -> bool:
        """Whether the checkpoint has the tensor."""
        return name in self._checkpoint.tensors

    def read(self, names: Sequence[str], dtype: torch.dtype | None) -> torch.Tensor:
        """Return the tensors one after the other along their first dimension."""
        dtype = dtype or held_dtype(names[0], self._setup.dtype, self._float32)
        if len(names) == 1:
            return self._placed(self._tensor(names[0], dtype))
        shapes = [self._checkpoint.tensors[name].shape for name in names]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        block = self._memory.empty(shape, dtype)
        begin = 0
        for name, one in zip(names, shapes, strict=True):
            block[begin : begin + one[0]] = self._tensor(name, dtype)
            begin += one[0]
        return block

    def stack(self, groups: Sequence[Sequence[str]]) -> torch.Tensor:
        """Return the groups, each fused as ``read`` does, under a new first dimension."""
        tensors = self._checkpoint.tensors
        dtype = held_dtype(groups[0][0], self._setup.dtype, self._float32)
        shape = tensors[groups[0][0]].shape
        fused = (sum(tensors[name].shape[0] for name in groups[0]), *shape[1:])
        block = self._memory.empty((len(groups), *fused), dtype)
        for index, group in enumerate(groups):
            begin = 0
            for name in group:
                end = begin + tensors[name].shape[0]
                block[index, begin:end] = self._tensor(name, dtype)
                begin = end
        return block

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device; on the host, in aligned memory beside its like."""
        if self._setup.device.type != "cpu":
            return tensor.to(self._setup.device)
        if tensor.data_ptr() % ALIGNMENT == 0 and not SMALL <= tensor.nbytes < LARGE:
            return tensor
        return self._memory.empty(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Read one tensor in ``dtype``; 16-bit weights that stay as they are take no detour."""
        info = self._checkpoint.tensors.get(name)
        if info is None:
            raise CheckpointError(
                f"torch engine: expected tensor {name}, got a checkpoint without it; "
                "check that the files belong together",
                reason="tensor_missing",
            )
        if info.dtype == _STORED.get(dtype):
            tensor = _sixteen_bit(self._checkpoint.read(name, "stored"), dtype)
        else:
            how = "float32" if dtype == torch.float32 else "rounded"
            tensor = torch.from_numpy(self._checkpoint.read(name, how)).to(dtype)
        self._done += tensor.nbytes
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)
        return tensor


class WeightMemory:
    """Memory for weights; on the host in long blocks, which the system can map in large pages.

    numpy asks for large pages where an array is long enough. With small ones a product spends a
    third of its time on looking up addresses. What a block has left over is never touched.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin without a block."""
        self._device = device
        self._block = torch.empty(0, dtype=torch.uint8)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that nothing was written to, aligned to 64 bytes."""
        nbytes = math.prod(shape) * dtype.itemsize
        if self._device.type != "cpu" or nbytes < SMALL:
            return torch.empty(shape, dtype=dtype, device=self._device)
        if nbytes >= LARGE:
            return long_memory(nbytes)[:nbytes].view(dtype).view(shape)
        if nbytes > len(self._block):
            self._block = long_memory(_BLOCK_BYTES)
        taken, used = self._block[:nbytes], -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._block = self._block[used:]
        return taken.view(dtype).view(shape)


def long_memory(nbytes: int) -> torch.Tensor:
    """Return at least ``nbytes`` of memory of numpy's, uint8, aligned to 64 bytes."""
    block = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    return torch.from_numpy(block[-block.ctypes.data % ALIGNMENT :])


class LentMemory:
    """A long block that is lent again as soon as nobody has any of it; one result at a time.

    New memory is not free: the system clears it, and a virtual machine's host may have to find it.
    The largest block that was asked for stays.
    """

    def __init__(self) -> None:
        """Begin without a block."""
        self._block = long_memory(0)
        self._lent: weakref.ref[np.ndarray] | None = None

    def take(self, nbytes: int) -> torch.Tensor:
        """Return ``nbytes`` that nothing was written to, uint8, aligned to 64 bytes."""
        if self._lent is not None and self._lent() is not None:
            return long_memory(nbytes)[:nbytes]
        if len(self._block) < nbytes:
            self._block = long_memory(nbytes)
        # What torch makes of an array keeps that array, and so does every view of it.
        own = self._block[:nbytes].numpy()
        self._lent = weakref.ref(own)
        return torch.from_numpy(own)


def held_bytes(
    shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, float32: Sequence[str]
) -> int:
    """Return the bytes of tensors as held."""
    return sum(
        math.prod(shape) * held_dtype(name, dtype, float32).itemsize
        for name, shape in shapes.items()
    )


def held_dtype(name: str, dtype: torch.dtype, float32: Sequence[str]) -> torch.dtype:
    """Return float32 for the names that end with one of ``float32``, else the compute dtype."""
    return torch.float32 if name.endswith(tuple(float32)) else dtype


_STORED = {torch.bfloat16: "BF16", torch.float16: "F16"}


def _sixteen_bit(bits: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """See stored 16-bit values as ``dtype``."""
    return torch.from_numpy(bits.view("int16")).view(dtype)
