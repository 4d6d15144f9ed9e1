"""The bytes of one stream's state: made by save, checked against this range and taken by restore.

It keeps nothing. The format is this engine's own: a header, then the tensors as they lie.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from stagelink.engine import StateEnvelope
from stagelink_transformers.kept import KeptWindow

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache

    from stagelink.engine import Family

_KINDS = (KeptWindow, DynamicLayer, LinearAttentionLayer)
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def state_envelope(
    family: Family, span: tuple[int, int], context: int, *, dtype: str, content: bytes
) -> StateEnvelope:
    """Describe the states of layers ``span`` of one model in one dtype."""
    facts = f"{sorted(family.config.items())!r} {dtype}".encode()
    return StateEnvelope.of("transformers", span, context, content, facts)


def can_be_saved(cache: DynamicCache) -> bool:
    """Say whether every layer of a cache is of a kind that has a format here."""
    return all(type(layer) in _KINDS for layer in cache.layers)


def encode_state(form: StateEnvelope, cache: DynamicCache, position: int) -> bytes:
    """Return a stream's state; its layers are of kinds that ``can_be_saved``."""
    parts = [_bits(one) for layer in cache.layers for one in _tensors(layer)] if position else []
    body = b"".join(parts)
    return form.close(position, body)


def parse_state(
    form: StateEnvelope, state: bytes, sample: DynamicCache, empty: DynamicCache
) -> int:
    """Fill ``empty`` with a saved state and return its positions.

    Args:
        form: What the state must agree with.
        state: The bytes.
        sample: A cache of this range that holds one position: it has every tensor's shape.
        empty: A fresh cache.

    Raises:
        EngineError: ``state_format``, ``state_damaged`` or ``context_overrun``.
    """
    position, body = form.open(state)
    forms = [_forms(layer, position) for layer in sample.layers] if position else []
    size = sum(math.prod(shape) * dtype.itemsize for one in forms for shape, dtype in one)
    form.check_size(body, size)
    at = 0
    for layer, shapes in zip(empty.layers, forms, strict=False):
        tensors = []
        for shape, dtype in shapes:
            count = math.prod(shape)
            tensors.append(_from_bits(body, at, count, dtype).reshape(shape))
            at += count * dtype.itemsize
        _fill(layer, tensors, sample, position)
    return position


def _tensors(layer: Any) -> list[torch.Tensor]:
    """Return the tensors of a layer that later rows depend on, in a fixed order."""
    kind = type(layer)
    if kind is KeptWindow:
        return list(layer.needed())
    if kind is DynamicLayer:
        return [layer.keys, layer.values]
    held = [*layer.conv_states.values(), *layer.recurrent_states.values()]
    return [one for one in held if one is not None]


def _forms(layer: Any, position: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of what ``_tensors`` gives for a stream of ``position`` positions."""
    if type(layer) is LinearAttentionLayer:
        return [(tuple(one.shape), one.dtype) for one in _tensors(layer)]
    rows = position
    if isinstance(layer, KeptWindow):
        rows = min(position, layer.sliding_window - 1)
    return [((*one.shape[:2], rows, one.shape[3]), one.dtype) for one in (layer.keys, layer.values)]


def _fill(layer: Any, tensors: list[torch.Tensor], sample: DynamicCache, position: int) -> None:
    """Put saved tensors into an empty cache layer."""
    device = next((one.device for one in _all(sample)), torch.device("cpu"))
    tensors = [one.to(device) for one in tensors]
    if type(layer) is LinearAttentionLayer:
        states = list(layer.conv_states)
        for n in states:
            layer.update_conv_state(tensors[n], state_idx=n)
        for n, one in enumerate(tensors[len(states) :]):
            layer.update_recurrent_state(one, state_idx=n)
        return
    keys, values = tensors
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    if isinstance(layer, KeptWindow):
        layer.cumulative_length = position


def _all(cache: DynamicCache) -> list[torch.Tensor]:
    return [one for layer in cache.layers for one in _tensors(layer)]


def _bits(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes, little-endian."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    words = flat.numpy().view(_WORDS[tensor.dtype.itemsize])
    return bytes(words.astype(words.dtype.newbyteorder("<")).tobytes())


def _from_bits(body: memoryview, at: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return ``count`` values in memory of their own."""
    little = np.dtype(_WORDS[dtype.itemsize]).newbyteorder("<")
    words = np.frombuffer(body, dtype=little, count=count, offset=at)
    own = words.astype(_WORDS[dtype.itemsize]).view(np.uint8)
    return torch.from_numpy(own).clone().view(dtype)
