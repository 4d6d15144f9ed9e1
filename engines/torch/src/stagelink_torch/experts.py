"""Routed experts: each row passes the few that its router chose, and their sum is its change.

It chooses nothing itself but by the plain router here; families with another have their own. Rounds
that a device replays take the forms of expert_forms.py.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional

from stagelink_torch.activations import activation_of
from stagelink_torch.expert_forms import StackedExperts
from stagelink_torch.product import Matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink_torch.activations import Activation
    from stagelink_torch.layer import Batch, Setup, Weights

    Gate = Callable[[torch.Tensor], torch.Tensor]


class Router(Protocol):
    """Chooses experts for rows."""

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the shares and the indices of the chosen experts, ``[rows, k]`` each."""
        ...


class SoftmaxRouter:
    """Shares are the probabilities of the ``k`` likeliest experts, made to sum to 1 or not."""

    def __init__(self, gate: torch.Tensor, used: int, *, normed: bool, wide: bool = False) -> None:
        """Take ``gate`` ``[experts, width]`` and how many experts a row passes.

        Shares stay float32 where they are ``wide`` (Mixtral); else they have the rows' dtype.
        """
        self._gate, self._used, self._normed, self._wide = gate, used, normed, wide

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose; probabilities are float32 whatever the rows are."""
        logits = functional.linear(rows, self._gate)
        likely = functional.softmax(logits, dim=-1, dtype=torch.float32)
        shares, chosen = likely.topk(self._used, dim=-1)
        if self._normed:
            shares /= shares.sum(dim=-1, keepdim=True)
        return shares if self._wide else shares.to(rows.dtype), chosen


class Experts:
    """The experts of one layer, held stacked; computed one after the other, by ascending number.

    A row's sum is made in that order whatever its neighbours chose, so neighbours change no bit of
    it beyond the number of rows that an expert's product has; in batch-invariant mode that number
    is padded.
    """

    def __init__(
        self,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        setup: Setup,
        *,
        gate: Gate | None = None,
        biases: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Take stacked weights.

        Args:
            gate_up: ``[experts, 2 * inner, width]``, the gate's rows first.
            down: ``[experts, width, inner]``.
            setup: The padding.
            gate: Turns ``[rows, 2 * inner]`` into ``[rows, inner]``; SwiGLU where it is not given.
            biases: Of ``gate_up`` ``[experts, 2 * inner]`` and of ``down`` ``[experts, width]``.
        """
        bias_in, bias_out = (None, None) if biases is None else biases
        self._gate_up = _matrices(gate_up, bias_in, setup)
        self._down = _matrices(down, bias_out, setup)
        silu = activation_of("silu", alone=setup.invariant)
        self._gate = gate or functools.partial(swiglu, silu=silu)
        self._step = setup.row_step
        self._stacked = StackedExperts(gate_up, down, self._gate, biases)

    def __call__(
        self, rows: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        """Return the shares' sum of the chosen experts' results, ``[rows, width]``.

        Padding rows pass no expert, and their result is zeros.
        """
        if batch.bucket:
            return self._stacked(rows, shares, chosen)
        # Shares in float32 have their sum in float32, which is rounded once.
        out = torch.zeros_like(rows, dtype=shares.dtype)
        used = batch.pieces[-1].end
        for expert, members, places in _members(chosen[:used]):
            taken = rows.index_select(0, members)
            result = self._one(expert, taken)
            share = shares[members, places][:, None]
            out.index_add_(0, members, result * share)
        return out.to(rows.dtype)

    def _one(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        """Return one expert's result ``[rows, width]``."""
        count = len(rows)
        short = -count % self._step
        if short:
            rows = torch.cat((rows, rows.new_zeros(short, rows.shape[1])))
        return self._down[expert](self._gate(self._gate_up[expert](rows)))[:count]


class RoutedFeedForward:
    """A router, its experts, and what every row passes beside them."""

    def __init__(
        self,
        router: Router,
        experts: Experts,
        shared: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Take the parts; ``shared`` is added to the experts' sum."""
        self._router, self._experts, self._shared = router, experts, shared

    def __call__(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the change of normed rows."""
        shares, chosen = self._router(rows)
        out = self._experts(rows, shares, chosen, batch)
        return out if self._shared is None else out.add_(self._shared(rows))


def read_experts(
    weights: Weights,
    prefix: str,
    count: int,
    setup: Setup,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Experts:
    """Read SwiGLU experts, stacked in the files or one tensor each.

    Args:
        weights: Stands at the layer.
        prefix: ``"mlp.experts."``.
        count: Experts.
        setup: Goes to the experts.
        names: What the files call gate, up and down where each expert has its own.
    """
    if weights.has(prefix + "gate_up_proj"):
        both = weights.read(prefix + "gate_up_proj"), weights.read(prefix + "down_proj")
        return Experts(*both, setup)
    gate, up, down = names
    at = [f"{prefix}{expert}." for expert in range(count)]
    gate_up = weights.stack([[f"{one}{gate}.weight", f"{one}{up}.weight"] for one in at])
    return Experts(gate_up, weights.stack([[f"{one}{down}.weight"] for one in at]), setup)


def swiglu(gate_up: torch.Tensor, silu: Activation) -> torch.Tensor:
    """Return ``silu(gate) * up``; Shazeer 2020, "GLU Variants Improve Transformer"."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def _matrices(stacked: torch.Tensor, bias: torch.Tensor | None, setup: Setup) -> list[Matrix]:
    """Return each expert's matrix: a view of the stacked weights."""
    biases = [None] * len(stacked) if bias is None else list(bias)
    return [Matrix(one, setup, other) for one, other in zip(stacked, biases, strict=True)]


def _members(chosen: torch.Tensor) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """Return each chosen expert, ascending, with its rows and their places in ``chosen``.

    The choice is read once, and goes back to the device as one tensor.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for row, experts in enumerate(chosen.tolist()):
        for place, expert in enumerate(experts):
            found.setdefault(expert, []).append((row, place))
    order = sorted(found)
    pairs = torch.tensor([pair for expert in order for pair in found[expert]]).T.contiguous()
    rows, places = pairs.to(chosen.device, non_blocking=True)
    sizes = [len(found[expert]) for expert in order]
    return list(zip(order, rows.split(sizes), places.split(sizes), strict=True))
