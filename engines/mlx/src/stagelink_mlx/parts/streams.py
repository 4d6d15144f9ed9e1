"""Gemma 3n's residual streams (AltUp, arXiv 2301.13310): how layers, embedding and head use them.

It reads no weights. A row is all streams side by side; a layer works on one of them and predicts
the others. The formulas are those of transformers, which bounds no coefficient outside of training;
mlx_lm's layers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.ends import Ends

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_mlx.families.recipes import Recipe

__all__ = ["StreamEnds", "StreamLayer", "flattened"]

_SQUARE_MIN = 1e-5
_KEYS = ("k_proj", "v_proj", "k_norm")


def flattened(model: Any, recipe: Recipe) -> Any:
    """Return mlx_lm's whole model with the layers where the files' names have them."""
    if recipe.has_streams:
        model.model = model.model.language_model
    return model


class StreamEnds(Ends):
    """The two ends: one embedded row becomes all streams, and their mean is what the head reads."""

    def __init__(self, model: Any, family: Family, recipe: Recipe, dtype: mx.Dtype) -> None:
        """Take the modules of mlx_lm's whole model; see ``Ends``."""
        super().__init__(model, family, recipe, dtype)
        self._body = recipe.body
        self._streams = family.row_factor
        for name in ("altup_projections", "altup_unembed_projections"):
            self[recipe.body][name] = model[recipe.body][name]

    def embed(self, ids: mx.array, first: int, *before: Any) -> mx.array:
        """Return the rows ``[1, ids, streams * width]`` of token ids."""
        rows = super().embed(ids, first, *before)
        made = [one(rows) for one in self[self._body]["altup_projections"]]
        return mx.concatenate([rows, *(_as_large(one, rows) for one in made)], axis=-1)

    def head(self, rows: mx.array) -> mx.array:
        """Return float32 logits ``[rows, vocab]`` of rows ``[rows, streams * width]``."""
        first, *others = mx.split(rows, self._streams, axis=-1)
        projections = self[self._body]["altup_unembed_projections"]
        made = [
            _as_large(one(stream), first) for one, stream in zip(projections, others, strict=True)
        ]
        return super().head(mx.mean(mx.stack([first, *made]), axis=0))


class StreamLayer(nn.Module):
    """One layer, on mlx_lm's modules: attention and feed-forward read one stream.

    It has no keys where it reads those of another layer, whatever mlx_lm makes there.
    """

    def __init__(self, layer: Any, family: Family) -> None:
        """Take the parts of mlx_lm's layer."""
        super().__init__()
        config = family.config
        self._active: int = config["altup_active_idx"]
        self._is_scaled: bool = config["altup_correct_scale"]
        self._width = family.width
        for name, part in layer.children().items():
            self[name] = part
        if self.self_attn.is_kv_shared_layer:
            for name in _KEYS:
                self.self_attn.pop(name)

    def __call__(self, rows: mx.array, mask: Any, cache: Any, first: int, told: Any) -> mx.array:
        """Return rows ``[1, n, streams * width]``.

        Args:
            rows: Of the same shape.
            mask: Of the layer's kind.
            cache: Its own keys and values, or those of the layer that it reads.
            first: Position of the first row.
            told: What the layer reads of the tokens.
        """
        streams = mx.unflatten(rows, -1, (-1, self._width))
        predicted = self._predicted(streams)
        active = predicted[..., self._active, :]
        normed = self.input_layernorm(active)
        attended = self.post_attention_layernorm(self.self_attn(normed, mask, cache, offset=first))
        seen = (active + attended + self.laurel(normed)) / 2.0**0.5
        fed = self.mlp(self.pre_feedforward_layernorm(seen))
        corrected = self._corrected(predicted, seen + self.post_feedforward_layernorm(fed))
        return self._with_token(corrected, told).flatten(-2)

    def _with_token(self, streams: mx.array, told: mx.array) -> mx.array:
        """Add what the token says to every stream but the first."""
        row = streams[..., self._active, :]
        if self._is_scaled:
            row = row * self.altup["correct_output_scale"]
        gated = nn.gelu_approx(self.per_layer_input_gate(row)) * told
        added = self.post_per_layer_input_norm(self.per_layer_projection(gated))
        first, others = streams[..., :1, :], streams[..., 1:, :]
        return mx.concatenate([first, others + added[..., None, :]], axis=-2)

    def _routed(self, row: mx.array) -> mx.array:
        """Return a number for each stream, of one stream's row."""
        scaled = self.altup["router_norm"](row) / self._width
        routed: mx.array = self.altup["modality_router"](scaled)
        return mx.tanh(routed.astype(mx.float32)).astype(row.dtype)

    def _predicted(self, streams: mx.array) -> mx.array:
        """Return ``[1, n, streams, width]``: each stream and a mixture of all."""
        count = streams.shape[-2]
        flat: mx.array = self.altup["prediction_coefs"](self._routed(streams[..., self._active, :]))
        return streams + mx.unflatten(flat, -1, (count, count)).astype(streams.dtype) @ streams

    def _corrected(self, predicted: mx.array, activated: mx.array) -> mx.array:
        """Return the streams with what the layer made of one of them, each by its own share."""
        shares: mx.array = self.altup["correction_coefs"](self._routed(activated)) + 1.0
        news = activated - predicted[..., self._active, :]
        return predicted + shares[..., None].astype(news.dtype) * news[..., None, :]


def _as_large(rows: mx.array, like: mx.array) -> mx.array:
    """Return rows scaled to the root of the mean square of others."""
    wanted = mx.sqrt(mx.mean(like**2, axis=-1, keepdims=True))
    own = mx.mean(rows**2, axis=-1, keepdims=True)
    return rows * wanted / mx.sqrt(mx.maximum(own, _SQUARE_MIN))
