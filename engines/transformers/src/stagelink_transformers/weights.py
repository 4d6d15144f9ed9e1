"""Fills a range with its own tensors, by the library's rules for names and for stacked experts.

It reads nothing but the names that it is given, one tensor after the other.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    dot_natural_key,
    rename_source_key,
)

from stagelink.engine import CheckpointError
from stagelink_transformers.computed import make_computed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stagelink.engine import Checkpoint
    from stagelink_transformers.model import LayerRange

_ADVICE = "fetch or export the checkpoint again"
# A layer's experts, which MLX stacks, and one expert in transformers' files. Families of the
# checkpoint's own table come with single experts.
_STACKS = (".switch_mlp.", ".experts.")
_SINGLE: dict[str, dict[str, str]] = {
    "mlp": {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"},
    "block_sparse_moe": {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
}


class _Source(NamedTuple):
    """What of the checkpoint one part of a target is read from.

    Attributes:
        pattern: The library's pattern that the name fits, or the name.
        name: The checkpoint's.
        expert: Which of a stack, or ``None`` for the whole tensor.
    """

    pattern: str
    name: str
    expert: int | None


@dataclasses.dataclass(slots=True)
class _Target:
    """One tensor of the modules, and the tensors of the checkpoint that it is made of."""

    transform: Any
    sources: list[_Source]


def kept_dtypes(model: LayerRange) -> dict[str, torch.dtype]:
    """Return the tensors that the library holds in another dtype than the model's: routers."""
    plan = model.model._get_dtype_plan(model.dtype)  # noqa: SLF001 - no public name
    kept: dict[str, torch.dtype] = {}
    for name in model.model.state_dict():
        for pattern, dtype in plan.items():
            if re.search(re.escape(pattern).replace(r"\*", r"\d+"), name):
                kept[name] = dtype
    return kept


def fill(
    model: LayerRange,
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    device: torch.device,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Read the own tensors into the modules and make what no file holds (frequencies, scales).

    The peak is the weights, and one stacked tensor with its parts.

    Args:
        model: The range, on the meta device.
        checkpoint: Where the tensors are.
        names: The checkpoint's name of each own tensor, and its name in a model of the own layers.
        device: Where the weights go.
        progress: Told of bytes done and in all.

    Raises:
        CheckpointError: ``tensor_missing``, ``tensor_shape`` or ``tensor_unknown``, naming the
            tensor.
    """
    causal = model.model
    state: dict[str, torch.Tensor] = causal.state_dict()
    kept = kept_dtypes(model)
    mapping = get_model_conversion_mapping(causal)
    granite = _granite_stacks(mapping)
    tensors = _tensors(checkpoint, names, state, is_whole=bool(granite))
    plan = _plan(causal, state, tensors, [*mapping, *granite])
    sizes = {
        at: sum(_nbytes(checkpoint, source) for source in target.sources)
        for at, target in plan.items()
    }
    done, total = 0, sum(sizes.values())
    for at, target in plan.items():
        if progress is not None:
            progress(done, total)
        dtype = kept.get(at, state[at].dtype)
        for source in target.sources:
            read = functools.partial(_read, checkpoint, source, dtype, device)
            target.transform.add_tensor(at, source.name, source.pattern, read)
        made = target.transform.convert(at, model=causal, config=causal.config)
        for name, values in made.items():
            _put(causal, name, values[0] if isinstance(values, list) else values)
        done += sizes[at]
    if progress is not None:
        progress(total, total)
    if model.lead:
        causal.tie_weights()
    make_computed(causal, device)
    for name, tensor in causal.state_dict().items():
        if tensor.is_meta:
            text = f"expected a tensor for {name} of transformers' modules, got none; {_ADVICE}"
            raise CheckpointError(text, reason="tensor_missing")


def _tensors(
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    state: Mapping[str, torch.Tensor],
    *,
    is_whole: bool,
) -> dict[str, tuple[str, int | None]]:
    """Return every own tensor by its name in the modules' files, MLX's stacks as single experts.

    A stack stays whole where ``is_whole``, or where the library has one of its name.
    """
    found: dict[str, tuple[str, int | None]] = {}
    for name, own in names.items():
        shape = checkpoint.tensors[name].shape
        single = None if is_whole or own in state or len(shape) != 3 else _single(own)
        if single is None:
            found[own] = name, None
            continue
        for expert in range(shape[0]):
            found[single.format(expert)] = name, expert
    return found


def _single(own: str) -> str | None:
    """Return the name of one expert of a stack of MLX's, ``{}`` for its number; else ``None``."""
    for stack in _STACKS:
        before, _, part = own.removesuffix(".weight").rpartition(stack)
        single = _SINGLE.get(before.rpartition(".")[2], {}).get(part)
        # The library's own stacks are no modules with a weight.
        if single is not None and own.endswith(".weight"):
            return f"{before}.experts.{{}}.{single}.weight"
    return None


def _plan(
    causal: Any,
    state: dict[str, torch.Tensor],
    tensors: Mapping[str, tuple[str, int | None]],
    mapping: Sequence[WeightTransform],
) -> dict[str, _Target]:
    """Find out which tensors of the checkpoint make which tensor of the modules.

    The library's own table says it: names of older files, and experts that are single in files and
    stacked in modules.

    Raises:
        CheckpointError: ``tensor_unknown`` for experts of MLX that are of another form.
    """
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    prefix = causal.base_model_prefix
    plan: dict[str, _Target] = {}
    for own in sorted(tensors, key=dot_natural_key):
        name, expert = tensors[own]
        at, pattern = rename_source_key(own, renamings, converters, prefix, state)
        if at not in state and own in state:
            at, pattern = own, None
        if at not in state and (expert is not None or _STACKS[0] in name):
            text = (
                f"{name}: expected experts as transformers has them in {type(causal).__name__}, "
                "got a stack of MLX's that is not taken apart here; use --engine mlx"
            )
            raise CheckpointError(text, reason="tensor_unknown")
        if at not in state:
            continue
        if at not in plan:
            transform: Any = copy.deepcopy(by_pattern[pattern]) if pattern else None
            plan[at] = _Target(transform or WeightRenaming(name, at), [])
        plan[at].sources.append(_Source(pattern or name, name, expert))
    return plan


def _granite_stacks(
    mapping: Sequence[WeightTransform],
) -> list[WeightTransform]:
    """Return how MLX's stacks become those of Granite, whose files have stacks and no singles."""
    known = {pattern.replace("\\", "") for one in mapping for pattern in one.source_patterns}
    if "block_sparse_moe.input_linear.weight" not in known:
        return []
    stack, experts = "block_sparse_moe.switch_mlp", "block_sparse_moe.experts"
    parts = [f"{stack}.gate_proj.weight", f"{stack}.up_proj.weight"]
    return [
        WeightConverter(parts, f"{experts}.gate_up_proj", [Concatenate(dim=1)]),
        WeightRenaming(f"{stack}.down_proj.weight", f"{experts}.down_proj"),
    ]


def _read(
    checkpoint: Checkpoint, source: _Source, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Read one tensor; the checkpoint gives memory aligned to 64 bytes, and so does torch."""
    how = "float32" if dtype == torch.float32 else "rounded"
    if source.expert is None:
        values = checkpoint.read(source.name, how)
    else:
        values = checkpoint.read(source.name, how, rows=(source.expert, source.expert + 1))[0]
    return torch.from_numpy(values).to(device=device, dtype=dtype)


def _nbytes(checkpoint: Checkpoint, source: _Source) -> int:
    """Return the bytes in the files."""
    info = checkpoint.tensors[source.name]
    return info.nbytes if source.expert is None else info.nbytes // info.shape[0]


def _put(causal: nn.Module, name: str, value: torch.Tensor) -> None:
    """Put one tensor into its module, in place of one without memory."""
    path, _, last = name.rpartition(".")
    module = causal.get_submodule(path)
    empty = getattr(module, last)
    if empty.shape != value.shape:
        text = (
            f"{name}: expected shape {list(empty.shape)}, as transformers has it, "
            f"got {list(value.shape)}; {_ADVICE}"
        )
        raise CheckpointError(text, reason="tensor_shape")
    if last in module._buffers:  # noqa: SLF001 - torch has no public question for it
        value._is_hf_initialized = True  # type: ignore[attr-defined] # noqa: SLF001
        setattr(module, last, value.contiguous())
        return
    held = nn.Parameter(value.contiguous(), requires_grad=False)
    held._is_hf_initialized = True  # type: ignore[attr-defined] # noqa: SLF001
    setattr(module, last, held)
