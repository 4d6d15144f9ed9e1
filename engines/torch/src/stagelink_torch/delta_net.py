"""The linear-attention block of Qwen3-Next and Qwen3.5: projections around the gated delta rule.

The rule is in gated_delta.py, the state in delta_slots.py; this file norms no row before the block.

Which form of the rule a piece takes depends on its number of rows alone, and blocks are counted
from the piece's first row: the composition rule of docs/exactness.md holds as for attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink_torch.activations import activation_of
from stagelink_torch.conv import causal_conv, causal_conv_each
from stagelink_torch.delta_slots import DeltaShape, DeltaSlots, Inputs
from stagelink_torch.gated_delta import Steps, advance, advance_each
from stagelink_torch.rowwise import sigmoid, softplus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stagelink_torch.layer import Batch, Setup, Weights

__all__ = ["FLOAT32", "DeltaNet"]

# exp(A_log) and the softplus are float32 in the reference, whatever the compute dtype is.
FLOAT32 = ("linear_attn.A_log", "linear_attn.dt_bias")


class DeltaNet:
    """One block with its weights; ``config`` is the text config of transformers 5."""

    def __init__(
        self, config: Mapping[str, Any], weights: Weights, setup: Setup, epsilon: float
    ) -> None:
        """Read ``linear_attn.*``: one projection for q, k, v, the gate z and the scalars b, a."""
        self._setup = setup
        self._epsilon = epsilon
        self._key_heads = config["linear_num_key_heads"]
        self._heads = heads = config["linear_num_value_heads"]
        self._key = key = config["linear_key_head_dim"]
        self._value = value = config["linear_value_head_dim"]
        channels = 2 * self._key_heads * key + heads * value
        self._splits = [channels, heads * value]
        taps = weights.read("linear_attn.conv1d.weight")
        # [channels, 1, taps] as stored; a tap is a row here.
        self._taps = taps[:, 0].float().T.contiguous()
        self._shape = DeltaShape(heads, key, value, channels, len(self._taps))
        self._project, self._scalars = self._read_projections(weights)
        self._growth = -weights.read("linear_attn.A_log", dtype=torch.float32).exp()
        self._shift = weights.read("linear_attn.dt_bias", dtype=torch.float32)
        self._norm = weights.read("linear_attn.norm.weight")
        self._silu = activation_of("silu", alone=setup.invariant)
        self._out = weights.read("linear_attn.out_proj.weight")

    def make_slots(self) -> DeltaSlots:
        """Allocate the states of all slots."""
        return DeltaSlots(self._shape, self, self._setup)

    def __call__(self, rows: torch.Tensor, batch: Batch, slots: DeltaSlots) -> torch.Tensor:
        """Return the change ``[rows, width]`` and advance the slots past the batch's rows."""
        projected = functional.linear(rows, self._project)
        mixed, gate = torch.split(projected, self._splits, dim=1)
        # A product of their own: the state magnifies a last bit of theirs, and a wide product
        # rounds narrow ones in another way than the reference does.
        rate, step = functional.linear(rows, self._scalars).chunk(2, dim=1)
        rate = sigmoid(rate)
        decay = self._growth * softplus(step.float() + self._shift)
        inputs = Inputs(mixed, decay, rate)
        if batch.bucket:
            out = slots.advance_each(batch, inputs)
        else:
            out = self._advance(batch, inputs, slots)
        gated = self._gated(out.to(rows.dtype), gate.reshape(out.shape))
        return functional.linear(gated.flatten(1), self._out)

    def step(self, inputs: Inputs, past: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Run convolution and rule over one piece's rows; see ``delta_slots.Rule``."""
        steps = self._steps(causal_conv(inputs.mixed, past, self._taps, self._silu), inputs)
        return advance(steps, state, recurrent=self._setup.invariant)

    def step_each(self, inputs: Inputs, pasts: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Run both over one row of each stream; see ``delta_slots.Rule``."""
        mixed = causal_conv_each(inputs.mixed, pasts, self._taps, self._silu)
        steps = self._steps(mixed, inputs)
        return advance_each(steps, states)

    def _steps(self, mixed: torch.Tensor, inputs: Inputs) -> Steps:
        """Return what the rule reads of rows ``mixed`` that passed the convolution."""
        keys, rows = self._key_heads * self._key, inputs.rows
        return Steps(
            mixed[:, :keys].view(rows, self._key_heads, self._key),
            mixed[:, keys : 2 * keys].view(rows, self._key_heads, self._key),
            mixed[:, 2 * keys :].view(rows, self._heads, self._value),
            inputs.decay,
            inputs.rate,
        )

    def _advance(self, batch: Batch, inputs: Inputs, slots: DeltaSlots) -> torch.Tensor:
        """Return float32 ``[rows, heads, Dv]``, piece by piece; zeros for padding."""
        out = torch.zeros(
            (batch.rows, self._heads, self._value),
            dtype=torch.float32,
            device=inputs.mixed.device,
        )
        for piece in batch.pieces:
            # The inputs are kept for a cut: copies, so that the batch's own memory is not.
            own = inputs.copied(piece.begin, piece.end)
            out[piece.begin : piece.end] = slots.advance(piece.slot, piece.first, own)
        return out

    def _gated(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return ``rms_norm(out) * weight * silu(gate)`` for each head, in the compute dtype."""
        wide = out.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self._epsilon)
        normed = self._norm * wide.to(out.dtype)
        return (normed * self._silu(gate.float())).to(out.dtype)

    def _read_projections(self, weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the matrix of q, k, v and z, and the one of b and a; each by head.

        Qwen3-Next's files have the rows by key head: its q, its k, the values of its group, their
        gates; and the rates b and the steps a of its group.
        """
        at = "linear_attn.in_proj_"
        if not weights.has(at + "qkvz.weight"):
            both = [[f"{at}{one}.weight" for one in names] for names in (("qkv", "z"), ("b", "a"))]
            return weights.read(*both[0]), weights.read(*both[1])
        group = self._heads // self._key_heads
        sizes = [self._key, self._key, group * self._value, group * self._value]
        return (
            self._by_kind(weights.read(at + "qkvz.weight"), sizes),
            self._by_kind(weights.read(at + "ba.weight"), [group, group]),
        )

    def _by_kind(self, matrix: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """Return the rows kind after kind, where each key head has ``sizes`` rows of the kinds."""
        kinds = torch.split(matrix.view(self._key_heads, sum(sizes), -1), sizes, dim=1)
        return torch.cat([one.flatten(0, 1) for one in kinds])
