"""The bytes of one stream's state: made by save, checked against this range and taken by restore.

It keeps nothing. The format is this engine's own: a header, then the tensors as they lie.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from stagelink.engine import StateEnvelope
from stagelink_transformers.kept import KeptWindow

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache

    from stagelink.engine import Family

_KINDS = (
    KeptWindow,
    DynamicLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
    DummyLayer,
)
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
    for layer, like, shapes in zip(empty.layers, sample.layers, forms, strict=False):
        tensors = []
        for shape, dtype in shapes:
            count = math.prod(shape)
            tensors.append(_from_bits(body, at, count, dtype).reshape(shape))
            at += count * dtype.itemsize
        _fill(layer, like, tensors, position)
    return position


def _tensors(layer: Any) -> list[torch.Tensor]:
    """Return the tensors of a layer that later rows depend on, in a fixed order."""
    states = [state for _, state in (*_states(layer, "conv"), *_states(layer, "recurrent"))]
    return [*states, *_keys_and_values(layer)]


def _states(layer: Any, kind: str) -> list[tuple[int, torch.Tensor]]:
    """Return the states of one kind of a recurrent layer, which may have several, by number."""
    held = getattr(layer, f"{kind}_states", {})
    return [(n, one) for n, one in held.items() if one is not None]


def _keys_and_values(layer: Any) -> list[torch.Tensor]:
    if isinstance(layer, KeptWindow):
        return list(layer.needed())
    held = isinstance(layer, DynamicLayer) and layer.is_initialized
    return [layer.keys, layer.values] if held else []


def _forms(layer: Any, position: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of what ``_tensors`` gives for a stream of ``position`` positions."""
    rows = position
    if isinstance(layer, KeptWindow):
        rows = min(position, layer.sliding_window - 1)
    kept = _keys_and_values(layer)
    states = _tensors(layer)[: -len(kept) or None]
    forms = [(tuple(one.shape), one.dtype) for one in states]
    return forms + [((*one.shape[:2], rows, one.shape[3]), one.dtype) for one in kept]


def _fill(layer: Any, like: Any, tensors: list[torch.Tensor], position: int) -> None:
    """Put saved tensors into an empty cache layer, as ``like`` has them of another stream."""
    own = _tensors(like)
    rest = [one.to(same.device) for one, same in zip(tensors, own, strict=True)]
    for n, _ in _states(like, "conv"):
        layer.update_conv_state(rest.pop(0), state_idx=n)
    for n, _ in _states(like, "recurrent"):
        layer.update_recurrent_state(rest.pop(0), state_idx=n)
    if rest:
        keys, values = rest
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
    if isinstance(layer, KeptWindow):
        layer.cumulative_length = position


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
