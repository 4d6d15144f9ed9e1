"""Batch-invariant mode: by how much rows and keys are padded so that a row's bits are its own.

It probes the machine with random numbers before any weights are read: the shapes of the model's
matrices and of those that layers fuse, and attention by its heads. It does not probe windows, sinks
or latent attention; tests show those on tiny models. Where the bits come from: docs/exactness.md.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from stagelink.engine import ConfigError
from stagelink_torch.norm import RmsNorm

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
_FUSED_PROJECTIONS = ("q_proj.weight", "k_proj.weight", "v_proj.weight")


class Heads(NamedTuple):
    """Query heads, key and value heads, and values of one head."""

    queries: int = 4
    keys: int = 2
    width: int = 64


_SOME_HEADS = Heads()


@dataclasses.dataclass(frozen=True, slots=True)
class Padding:
    """What a probe found."""

    row_step: int
    kv_step: int


def invariant_setup(family: Family, setup: Setup, *, able: bool) -> Setup:
    """Return the setup with the padding under which a stream's bits are its own.

    Args:
        family: Its matrices' shapes and its heads are probed.
        setup: Without padding.
        able: Whether the family's layers keep the rule.

    Raises:
        ConfigError: ``engine_invariance`` where nothing of the kind can be promised.
    """
    if setup.device.type != "cpu" or not able:
        what = f"{family.model_type} on {setup.device.type}"
        raise _refuse(f"a family and a device that can promise it, got {what}")
    if "kv_lora_rank" in family.config and family.config["num_attention_heads"] == 1:
        # Products of a single head are computed as those of plain matrices, with other bits.
        raise _refuse("latent attention with two heads or more, got one")
    padding = find_padding(_matrix_shapes(family), setup, _heads(family))
    if padding is None:
        raise _refuse(
            f"a count of rows up to {STEPS[-1]} that products can be padded to, got none with "
            f"{torch.get_num_threads()} threads"
        )
    return dataclasses.replace(setup, row_step=padding.row_step, kv_step=padding.kv_step, made={})


def find_padding(
    shapes: Iterable[tuple[int, int]], setup: Setup, heads: Heads = _SOME_HEADS
) -> Padding | None:
    """Return the smallest padding that the probe shows to be enough, or ``None``.

    Args:
        shapes: ``(out, in)`` of the matrices to probe.
        setup: The compute dtype.
        heads: What attention is probed with.
    """
    known = frozenset((min(out, _OUT_MAX), inner) for out, inner in shapes)
    return _probed(known, heads, setup.dtype, torch.get_num_threads())


@functools.cache
def _probed(
    shapes: frozenset[tuple[int, int]], heads: Heads, dtype: torch.dtype, threads: int
) -> Padding | None:
    """Probe; the machine does not change under a process, so a result is remembered."""
    del threads
    generator = torch.Generator().manual_seed(_SEED)
    with torch.inference_mode():
        for step in STEPS:
            linear = all(_linear_agrees(shape, step, dtype, generator) for shape in sorted(shapes))
            if linear and _attention_agrees(heads, step, dtype, generator):
                return Padding(step, KV_STEP)
    return None


def _linear_agrees(
    shape: tuple[int, int], step: int, dtype: torch.dtype, generator: torch.Generator
) -> bool:
    """Whether every row of a product has the same bits for every padded count and at any place."""
    out, inner = shape
    weight = torch.randn(out, inner, generator=generator).to(dtype)
    rows = torch.randn(step * _MULTIPLES[-1], inner, generator=generator).to(dtype)
    norm = RmsNorm(torch.ones(inner, dtype=dtype), 1e-5)
    whole = functional.linear(rows, weight)
    normed = norm(rows)
    for count in (step * multiple for multiple in _MULTIPLES):
        # The end of the rows as well as their beginning: a row's place must not matter.
        for part in (slice(0, count), slice(len(rows) - count, len(rows))):
            taken = rows[part].clone()
            if not torch.equal(functional.linear(taken, weight), whole[part]):
                return False
            if not torch.equal(norm(taken), normed[part]):
                return False
    return True


def _attention_agrees(
    heads: Heads, step: int, dtype: torch.dtype, generator: torch.Generator
) -> bool:
    """Whether padded queries over padded keys have the bits of one call over all of them."""
    positions = 3 * KV_STEP
    queries, keys, values = (
        torch.randn(1, count, positions, heads.width, generator=generator).to(dtype)
        for count in (heads.queries, heads.keys, heads.keys)
    )

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


def _heads(family: Family) -> Heads:
    """Return the heads that the family's attention has; some of the usual where it has others."""
    config = family.config
    if "kv_lora_rank" in config:
        return _SOME_HEADS
    return Heads(config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"])


def _matrix_shapes(family: Family) -> set[tuple[int, int]]:
    """Return ``(out, in)`` of the model's matrices, and of those that layers fuse."""
    tensors = family.own_tensors(0, family.layers, lead=True)
    found = {(shape[0], shape[1]) for shape in tensors.values() if len(shape) == 2}
    # Two of a kind (gate and up), one layer's q, k and v, and stacks of experts, which lie in
    # files either way round.
    found |= {(2 * out, inner) for out, inner in found}
    for layer in range(family.layers):
        own = family.layer_tensors(layer)
        parts = [shape for name, shape in own.items() if name.endswith(_FUSED_PROJECTIONS)]
        if parts:
            found.add((sum(shape[0] for shape in parts), parts[0][1]))
    for shape in tensors.values():
        if len(shape) == 3 and shape[1] > 1:
            found |= {(shape[1], shape[2]), (shape[2], shape[1])}
    return found


def _refuse(expected: str) -> ConfigError:
    """Build the error of a promise that cannot be made."""
    return ConfigError(
        f"torch engine: batch-invariant mode: expected {expected}; start without --batch-invariant",
        reason="engine_invariance",
    )
