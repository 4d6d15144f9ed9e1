"""Replaces what mlx_lm's layers of plain attention compute otherwise than the model's config says.

It reads no weights; the modules keep the names that mlx_lm gives their tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.library import models_module
from stagelink_mlx.parts.block_sparse import BlockSparseAttention
from stagelink_mlx.parts.kimi_k3 import kimi_k3_layer
from stagelink_mlx.parts.norms import bare_layer_norm, correct_latent_norms
from stagelink_mlx.parts.rope import make_rope
from stagelink_mlx.parts.streams import StreamLayer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagelink.engine import Family

__all__ = ["corrected"]


def corrected(layer: Any, family: Family, n: int) -> Any:
    """Correct layer ``n`` in place, or return another in its place."""
    config = family.config
    if family.model_type == "gpt_neox" and config["hidden_act"] == "gelu":
        # mlx_lm's block has the tanh form.
        layer.mlp = _TwoMatrices(layer.mlp, ("dense_h_to_4h", "dense_4h_to_h"), nn.gelu)
    elif family.model_type == "gpt_bigcode" and config["hidden_act"] != "gelu":
        layer.mlp = _TwoMatrices(layer.mlp, ("c_fc", "c_proj"), nn.gelu_approx)
    elif family.model_type == "starcoder2" and config["hidden_act"] == "gelu_pytorch_tanh":
        # mlx_lm's block has the exact GELU.
        layer.mlp = _TwoMatrices(layer.mlp, ("c_fc", "c_proj"), nn.gelu_approx)
    elif family.model_type == "olmo":
        for name in ("input_layernorm", "post_attention_layernorm"):
            layer[name] = bare_layer_norm(config)
        if config.get("clip_qkv") is not None:
            layer.self_attn = _BoundedAttention(layer.self_attn, config["clip_qkv"])
    elif family.model_type == "bitnet":
        _hold_floats(layer)
    elif family.model_type == "minicpm3":
        correct_latent_norms(layer.self_attn)
    elif family.model_type == "ministral3":
        layer.self_attn.scaling_beta = config["llama_4_scaling_beta"]
    elif family.model_type == "gemma3n_text":
        return StreamLayer(layer, family)
    elif family.model_type == "nanochat":
        return _BareBlock(layer, config["rms_norm_eps"])
    elif family.model_type == "phi3small" and layer.self_attn.block_sparse:
        layer.self_attn = BlockSparseAttention(layer.self_attn)
    elif family.model_type == "talkie":
        width = config["head_dim"]
        turn = make_rope(config["rope_parameters"], width, traditional=False, is_turned_back=True)
        layer.attn._rope_freqs = turn.periods  # noqa: SLF001 - it has no other name
    elif family.model_type == "baichuan_m1":
        layer.self_attn = _MixingAttention(layer.self_attn, config["rope_parameters"])
    elif family.model_type == "kimi_k3":
        return kimi_k3_layer(layer, family, n)
    return layer


class _TwoMatrices(nn.Module):
    """A feed-forward block of two matrices with another activation than mlx_lm's."""

    def __init__(
        self, block: Any, names: tuple[str, str], activation: Callable[[mx.array], mx.array]
    ) -> None:
        super().__init__()
        self._names, self._activation = names, activation
        for name in names:
            self[name] = block[name]

    def __call__(self, rows: mx.array) -> mx.array:
        first, second = (self[name] for name in self._names)
        out: mx.array = second(self._activation(first(rows)))
        return out


def _hold_floats(layer: Any) -> None:
    """BitNet: mlx_lm has packed matrices only, which a GPU alone multiplies."""
    packed = models_module("bitlinear_layers").BitLinear
    for inner in (layer.self_attn, layer.mlp):
        for name, module in list(inner.children().items()):
            if isinstance(module, packed):
                has_bias = module.bias is not None
                inner[name] = nn.Linear(module.in_features, module.out_features, bias=has_bias)


class _BoundedAttention(nn.Module):
    """OLMo's attention with bounded queries, keys and values, on the matrices of llama's."""

    def __init__(self, attention: Any, bound: float) -> None:
        super().__init__()
        self._bound, self._scale = bound, attention.scale
        self._heads = (attention.n_heads, attention.n_kv_heads, attention.n_kv_heads)
        self.q_proj, self.k_proj = attention.q_proj, attention.k_proj
        self.v_proj, self.o_proj, self.rope = attention.v_proj, attention.o_proj, attention.rope

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        at = cache.offset
        queries, keys, values = (
            mx.clip(made(rows), -self._bound, self._bound)
            for made in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys, values = (
            _by_head(one, heads)
            for one, heads in zip((queries, keys, values), self._heads, strict=True)
        )
        queries, keys = (self.rope(one, offset=at) for one in (queries, keys))
        keys, values = cache.update_and_fetch(keys, values)
        out: mx.array = self.o_proj(_attended(queries, keys, values, self._scale, mask))
        return out


class _BareBlock(nn.Module):
    """nanochat's layer: norms have no weights, and the epsilon of the config.

    mlx_lm's has one epsilon for all models. Heads are normed after they are turned.
    """

    def __init__(self, layer: Any, epsilon: float) -> None:
        super().__init__()
        self._epsilon = epsilon
        self.attn, self.mlp = _BareAttention(layer.attn, epsilon), layer.mlp

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        seen = rows + self.attn(mx.fast.rms_norm(rows, None, self._epsilon), mask, cache)
        out: mx.array = seen + self.mlp(mx.fast.rms_norm(seen, None, self._epsilon))
        return out


class _BareAttention(nn.Module):
    def __init__(self, attention: Any, epsilon: float) -> None:
        super().__init__()
        self._epsilon, self._scale = epsilon, attention.scale
        self._heads = (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)
        self.c_q, self.c_k, self.c_v = attention.c_q, attention.c_k, attention.c_v
        self.c_proj = attention.c_proj
        # Set for each layer by layers.py.
        self.rope: Any = nn.Identity()

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        queries, keys, values = (
            _by_head(made(rows), heads)
            for made, heads in zip((self.c_q, self.c_k, self.c_v), self._heads, strict=True)
        )
        at = cache.offset
        queries, keys = (
            mx.fast.rms_norm(self.rope(one, offset=at), None, self._epsilon)
            for one in (queries, keys)
        )
        keys, values = cache.update_and_fetch(keys, values)
        out: mx.array = self.c_proj(_attended(queries, keys, values, self._scale, mask))
        return out


class _MixingAttention(nn.Module):
    """Baichuan-M1's attention: the row before is mixed into keys and values.

    mlx_lm's keeps the last row alone, which no cut goes back from.
    """

    def __init__(self, attention: Any, rope: Mapping[str, Any]) -> None:
        super().__init__()
        self._heads = (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)
        self._scale, self._width = attention.scale, attention.head_dim
        self.W_pack, self.o_proj = attention.W_pack, attention.o_proj
        self.conv_k, self.conv_v = attention.conv_k, attention.conv_v
        self._turn = make_rope(rope, self._width, traditional=False)

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        at, borders = cache.offset, (self._heads[0], self._heads[0] + self._heads[1])
        packed = mx.split(self.W_pack(rows), [one * self._width for one in borders], axis=-1)
        queries, *plain = (
            _by_head(one, heads) for one, heads in zip(packed, self._heads, strict=True)
        )
        with_last = cache.plain.update_and_fetch(*plain)
        keys, values = (
            _mixed(one, last, kernel)
            for one, last, kernel in zip(plain, with_last, (self.conv_k, self.conv_v), strict=True)
        )
        queries, keys = (self._turn(one, offset=at) for one in (queries, keys))
        keys, values = cache.mixed.update_and_fetch(keys, values)
        out: mx.array = self.o_proj(_attended(queries, keys, values, self._scale, mask))
        return out


def _by_head(values: mx.array, heads: int) -> mx.array:
    """Return ``[1, heads, rows, width]`` of ``[1, rows, heads * width]``."""
    return mx.unflatten(values, -1, (heads, -1)).swapaxes(1, 2)


def _attended(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any
) -> mx.array:
    """Return what heads ``[1, heads, rows, width]`` see, ``[1, rows, heads * width]``."""
    seen = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
    return seen.swapaxes(1, 2).flatten(-2)


def _mixed(rows: mx.array, with_last: mx.array, kernel: mx.array) -> mx.array:
    """Return ``[1, heads, rows, width]`` with the row before mixed into each; none is zeros."""
    if with_last.shape[2] == rows.shape[2]:
        with_last = mx.pad(rows, [(0, 0), (0, 0), (1, 0), (0, 0)])
    parts = kernel.reshape(1, -1, 2, 1, 1)
    return with_last[:, :, :-1] * parts[:, :, 0] + rows * parts[:, :, 1]
