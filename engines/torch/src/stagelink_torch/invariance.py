"""Batch-invariant mode: by how much rows and keys are padded so that a row's bits are its own.

It probes the machine with random numbers before any weights are read, and promises nothing that the
probe did not show. Where the bits come from: docs/exactness.md.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink.engine import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.engine import Family
    from stagelink_torch.layer import Setup

# Attention reads keys in blocks of this many positions; a shorter last block has other bits.
KV_STEP = 512
# Matrix products take another path below some count of rows, or where a thread gets too few.
STEPS = (4, 8, 16, 32, 64)
# Counts of padded rows, as multiples of the step, that must agree.
_MULTIPLES = (1, 2, 3, 4, 5, 7, 8)
_OUT_MAX = 4096
_SEED = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Padding:
    """What a probe found."""

    row_step: int
    kv_step: int


def invariant_setup(family: Family, setup: Setup, *, able: bool) -> Setup:
    """Return the setup with the padding under which a stream's bits are its own.

    Args:
        family: Its tensors' shapes are probed.
        setup: Without padding.
        able: Whether the family's layers keep the rule.

    Raises:
        ConfigError: ``engine_invariance`` where nothing of the kind can be promised.
    """
    if setup.device.type != "cpu" or not able:
        what = f"{family.model_type} on {setup.device.type}"
        raise _refuse(f"a family and a device that can promise it, got {what}")
    padding = find_padding(_matrix_shapes(family), setup)
    if padding is None:
        raise _refuse(
            f"a count of rows up to {STEPS[-1]} that products can be padded to, got none with "
            f"{torch.get_num_threads()} threads"
        )
    return dataclasses.replace(setup, row_step=padding.row_step, kv_step=padding.kv_step, made={})


def find_padding(shapes: Iterable[tuple[int, int]], setup: Setup) -> Padding | None:
    """Return the smallest padding that the probe shows to be enough, or ``None``.

    Args:
        shapes: ``(out, in)`` of the matrices to probe.
        setup: The compute dtype.
    """
    known = frozenset((min(out, _OUT_MAX), inner) for out, inner in shapes)
    return _probed(known, setup.dtype, torch.get_num_threads())


@functools.cache
def _probed(shapes: frozenset[tuple[int, int]], dtype: torch.dtype, threads: int) -> Padding | None:
    """Probe; the machine does not change under a process, so a result is remembered."""
    del threads
    generator = torch.Generator().manual_seed(_SEED)
    with torch.inference_mode():
        for step in STEPS:
            linear = all(_linear_agrees(shape, step, dtype, generator) for shape in sorted(shapes))
            if linear and _attention_agrees(step, dtype, generator):
                return Padding(step, KV_STEP)
    return None


def _linear_agrees(
    shape: tuple[int, int], step: int, dtype: torch.dtype, generator: torch.Generator
) -> bool:
    """Whether every row of a product has the same bits for every padded count and at any place."""
    out, inner = shape
    weight = torch.randn(out, inner, generator=generator).to(dtype)
    rows = torch.randn(step * _MULTIPLES[-1], inner, generator=generator).to(dtype)
    norm = torch.ones(inner, dtype=dtype)
    whole = functional.linear(rows, weight)
    normed = functional.rms_norm(rows, (inner,), norm, 1e-5)
    for count in (step * multiple for multiple in _MULTIPLES):
        # The end of the rows as well as their beginning: a row's place must not matter.
        for part in (slice(0, count), slice(len(rows) - count, len(rows))):
            taken = rows[part].clone()
            if not torch.equal(functional.linear(taken, weight), whole[part]):
                return False
            if not torch.equal(functional.rms_norm(taken, (inner,), norm, 1e-5), normed[part]):
                return False
    return True


def _attention_agrees(step: int, dtype: torch.dtype, generator: torch.Generator) -> bool:
    """Whether padded queries over padded keys have the bits of one call over all of them."""
    heads, kv_heads, width, positions = 4, 2, 64, 3 * KV_STEP
    keys, values = (
        torch.randn(1, kv_heads, positions, width, generator=generator).to(dtype) for _ in range(2)
    )
    queries = torch.randn(1, heads, positions, width, generator=generator).to(dtype)

    def attend(begin: int, end: int, seen: int) -> torch.Tensor:
        mask = torch.arange(seen)[None] <= torch.arange(begin, end)[:, None]
        return functional.scaled_dot_product_attention(
            queries[:, :, begin:end],
            keys[:, :, :seen],
            values[:, :, :seen],
            attn_mask=mask[None, None],
            enable_gqa=True,
        )

    whole = attend(0, positions, positions)
    starts = (0, step, KV_STEP - step, KV_STEP, 2 * KV_STEP + 3 * step)
    for begin, multiple in itertools.product(starts, _MULTIPLES):
        end = min(begin + step * multiple, positions)
        seen = -(-end // KV_STEP) * KV_STEP
        if not torch.equal(attend(begin, end, seen), whole[:, :, begin:end]):
            return False
    return True


def _matrix_shapes(family: Family) -> set[tuple[int, int]]:
    """Return ``(out, in)`` of the model's matrices, and of the two that layers fuse."""
    tensors = family.own_tensors(0, family.layers, lead=True)
    matrices = {shape for shape in tensors.values() if len(shape) == 2}
    fused = {(2 * out, inner) for out, inner in matrices}
    return {(out, inner) for out, inner in matrices | fused}


def _refuse(expected: str) -> ConfigError:
    """Build the error of a promise that cannot be made."""
    return ConfigError(
        f"torch engine: batch-invariant mode: expected {expected}; start without --batch-invariant",
        reason="engine_invariance",
    )
