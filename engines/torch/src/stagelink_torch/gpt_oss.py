"""gpt-oss: attention with sinks and biases, a window in every second layer, clamped experts.

The parts are in attention.py, experts.py and norm.py.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink_torch.activations import activation_of
from stagelink_torch.attention import Attention
from stagelink_torch.decoder import DecoderLayer, attention_shape, config_rope
from stagelink_torch.ends import ModelEnds
from stagelink_torch.experts import Experts, RoutedFeedForward
from stagelink_torch.norm import RmsNorm

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.activations import Activation
    from stagelink_torch.layer import Layer, Setup, Weights

# The published model's; its config does not always say them.
_ALPHA, _LIMIT = 1.702, 7.0

GRAPHS = INVARIANT = True


class TopRouter:
    """Shares are the softmax over the chosen experts' logits alone."""

    def __init__(self, gate: torch.Tensor, bias: torch.Tensor, used: int) -> None:
        """Take ``gate`` ``[experts, width]``, its bias, and how many experts a row passes."""
        self._gate, self._bias, self._used = gate, bias, used

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return shares and indices, ``[rows, k]`` each."""
        logits, chosen = functional.linear(rows, self._gate, self._bias).topk(self._used, dim=-1)
        return functional.softmax(logits, dim=-1), chosen


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:
    """Make layer ``index`` of the model: whether it slides is ``layer_types``' by number."""
    config, epsilon = family.config, family.norm_epsilon
    sliding = config["layer_types"][index] == "sliding_attention"
    shape = attention_shape(config, config["sliding_window"] if sliding else 0)
    attention = Attention(
        shape,
        weights,
        setup,
        rope=config_rope(config, shape.head_width, setup),
        sinks=weights.read("self_attn.sinks"),
    )
    norms = tuple(
        RmsNorm(weights.read(name + ".weight"), epsilon, wide=True)
        for name in ("input_layernorm", "post_attention_layernorm")
    )
    router = TopRouter(
        weights.read("mlp.router.weight"),
        weights.read("mlp.router.bias"),
        config["num_experts_per_tok"],
    )
    feed_forward = RoutedFeedForward(router, _read_experts(family, weights, setup))
    return DecoderLayer((norms[0], norms[1]), attention, feed_forward)


def make_ends(family: Family, weights: Weights, setup: Setup) -> ModelEnds:
    """Make the ends: a final norm that rounds once."""
    return ModelEnds(family, weights, setup, wide=True)


def _read_experts(family: Family, weights: Weights, setup: Setup) -> Experts:
    """Read stacked experts and turn them so that one product form serves every family.

    The files have ``[experts, in, out]`` with gate and up in turn, one output after the other.
    """
    config = family.config
    at = "mlp.experts."
    gate = functools.partial(
        _clamped_gate,
        alpha=config.get("swiglu_alpha", _ALPHA),
        limit=config.get("swiglu_limit", _LIMIT),
        sigmoid=activation_of("sigmoid", alone=setup.invariant),
    )
    bias = weights.read(at + "gate_up_proj_bias")
    return Experts(
        _gate_first(weights.read(at + "gate_up_proj").transpose(1, 2)),
        weights.read(at + "down_proj").transpose(1, 2).contiguous(),
        setup,
        gate=gate,
        biases=(_gate_first(bias), weights.read(at + "down_proj_bias")),
    )


def _gate_first(both: torch.Tensor) -> torch.Tensor:
    """Return ``[experts, 2 * inner, ...]``, gate and up in turn, with all of the gate first."""
    return torch.cat((both[:, ::2], both[:, 1::2]), dim=1)


def _clamped_gate(
    gate_up: torch.Tensor, alpha: float, limit: float, sigmoid: Activation
) -> torch.Tensor:
    """Return ``(up + 1) * gate * sigmoid(alpha * gate)`` of clamped halves."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return (up.clamp(-limit, limit) + 1).mul_(gate * sigmoid(gate * alpha))
