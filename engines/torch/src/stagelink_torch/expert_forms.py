"""Routed experts for rounds that a device replays: every shape is known before the router chose.

It chooses nothing and reads no choice on the host; experts.py computes all other rounds.

Two forms, by the rows' number alone. *Picked*: the weights of each row's experts are copied to one
place by their index, and multiplied there: what is moved is three times the chosen weights. *All*:
every row passes every expert, and what was not chosen is dropped: each weight is read once. The
first is taken where it moves less. Either works through at most ``_BYTES_MAX`` at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StackedExperts"]

# Most bytes of weights that are copied at a time, and of results that wait for their sum.
_BYTES_MAX = 256 << 20
# A picked weight is read, written and read again.
_PICKED_COST = 3


class StackedExperts:
    """Experts as whole tensors; see ``experts.Experts`` for what they are."""

    def __init__(
        self,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        gate: Callable[[torch.Tensor], torch.Tensor],
        biases: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Take the weights; nothing is copied.

        Args:
            gate_up: ``[experts, 2 * inner, width]``, the gate's rows first.
            down: ``[experts, width, inner]``.
            gate: Turns ``[..., 2 * inner]`` into ``[..., inner]``.
            biases: Of both, ``[experts, out]`` each.
        """
        self._gate_up, self._down, self._gate = gate_up, down, gate
        self._biases = biases

    def __call__(
        self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """Return ``[rows, width]``; ``shares`` and ``chosen`` are ``[rows, k]``.

        The sum is made in the shares' dtype, as the unrecorded one.
        """
        if chosen.numel() * _PICKED_COST < len(self._down):
            return self._picked(rows, shares, chosen)
        return self._all(rows, shares, chosen)

    def _picked(
        self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum over each row's own experts."""
        count, used = chosen.shape
        experts = chosen.flatten()
        inputs = rows.repeat_interleave(used, dim=0)[:, :, None]
        step = max(1, _BYTES_MAX // max(self._gate_up[0].nbytes, self._down[0].nbytes))
        parts = [
            self._pick(inputs[begin : begin + step], experts[begin : begin + step])
            for begin in range(0, len(experts), step)
        ]
        results = torch.cat(parts).view(count, used, -1)
        return (results * shares[:, :, None]).sum(dim=1).to(rows.dtype)

    def _pick(self, inputs: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return one expert's result for each of ``inputs [n, width, 1]``: ``[n, width]``."""
        wide = torch.bmm(self._gate_up.index_select(0, experts), inputs)[:, :, 0]
        if self._biases is not None:
            wide = wide + self._biases[0].index_select(0, experts)
        down = self._down.index_select(0, experts)
        out = torch.bmm(down, self._gate(wide)[:, :, None])[:, :, 0]
        return out if self._biases is None else out + self._biases[1].index_select(0, experts)

    def _all(self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return the sum over all experts, where each row's share of most is none."""
        count, experts = len(rows), len(self._down)
        form = (count, experts)
        dropped = torch.ones(form, dtype=torch.bool, device=rows.device)
        dropped.scatter_(1, chosen, value=False)
        share = torch.zeros(form, dtype=shares.dtype, device=rows.device).scatter_(
            1, chosen, shares
        )
        out = torch.zeros_like(rows, dtype=shares.dtype)
        values = count * (self._gate_up.shape[1] + self._down.shape[1])
        step = max(1, _BYTES_MAX // (values * rows.itemsize))
        for begin in range(0, experts, step):
            part = slice(begin, begin + step)
            results = self._each(rows, part) * share.T[part, :, None]
            # Dropped and not multiplied by zero: what a row did not choose may be no number.
            results.masked_fill_(dropped.T[part, :, None], 0.0)
            out += results.sum(dim=0)
        return out.to(rows.dtype)

    def _each(self, rows: torch.Tensor, part: slice) -> torch.Tensor:
        """Return the results ``[experts, rows, width]`` of a part of the experts for all rows."""
        gate_up, down = self._gate_up[part], self._down[part]
        wide = torch.bmm(rows.expand(len(gate_up), -1, -1), gate_up.transpose(1, 2))
        if self._biases is not None:
            wide = wide + self._biases[0][part, None]
        out = torch.bmm(self._gate(wide), down.transpose(1, 2))
        return out if self._biases is None else out + self._biases[1][part, None]
