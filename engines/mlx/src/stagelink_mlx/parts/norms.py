"""Norms that mlx_lm's models have otherwise: without weights, or with another epsilon.

It reads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BareNorm",
    "bare_layer_norm",
    "bare_rms_norm",
    "correct_latent_norms",
    "first_layer_norm",
]

_OLMO_EPSILON = 1e-5
_LATENT_EPSILON = 1e-6


class BareNorm(nn.Module):
    """An RMSNorm (Zhang and Sennrich 2019) without weights."""

    def __init__(self, epsilon: float) -> None:
        """Take what is added to the mean of squares."""
        super().__init__()
        self.epsilon = epsilon

    def __call__(self, rows: mx.array) -> mx.array:
        """Return rows ``[..., width]`` over the root of the mean of their squares."""
        normed: mx.array = mx.fast.rms_norm(rows, None, self.epsilon)
        return normed


def bare_rms_norm(config: Mapping[str, Any]) -> nn.Module:
    """Return an RMSNorm without weights, with the config's epsilon."""
    return BareNorm(config["rms_norm_eps"])


def bare_layer_norm(config: Mapping[str, Any]) -> nn.Module:
    """Return OLMo's norm: a LayerNorm without weights."""
    return nn.LayerNorm(config["hidden_size"], _OLMO_EPSILON, affine=False)


def first_layer_norm(config: Mapping[str, Any]) -> nn.Module:
    """Return a LayerNorm with the config's epsilon."""
    return nn.LayerNorm(config["hidden_size"], config["layer_norm_epsilon"])


def correct_latent_norms(attention: Any) -> None:
    """Give the norms of latents the epsilon of the models' own code, which no config says."""
    for name in ("q_a_layernorm", "kv_a_layernorm"):
        if name in attention:
            attention[name].eps = _LATENT_EPSILON
