"""The gated delta rule: what a linear-attention layer does to its state, row by row or in blocks.

It knows no projection, no slot and no plan; delta_net.py has the layer around it.

For one head, with a state ``S [Dk, Dv]``, a decay ``a = exp(g) <= 1`` and a rate ``b`` in 0..1
(Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv 2412.06464, eq. 10)::

    S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}^T k_t)^T        o_t = S_t^T q_t / sqrt(Dk)

with q and k of unit length. ``advance`` takes one stream's rows: the recurrent form for up to
``RECURRENT_ROWS_MAX`` of them and the block form for more. ``advance_each`` takes several streams,
one row of each.
"""

from __future__ import annotations

import torch

from stagelink_torch.rowwise import exp

__all__ = [
    "BLOCK_ROWS",
    "RECURRENT_ROWS_MAX",
    "Steps",
    "advance",
    "advance_blocks",
    "advance_each",
    "advance_rows",
]

# Up to so many rows, the recurrence itself runs: a row's bits then do not depend on the rows beside
# it, and a window of drafts can be cut anywhere. Above, blocks turn most of it into products.
RECURRENT_ROWS_MAX = 16
BLOCK_ROWS = 64
# Added to the squared length of q and k before the root, as in the reference implementations.
_LENGTH_EPSILON = 1e-6


class Steps:
    """What the rule reads of ``n`` rows, in float32 with heads first.

    Attributes:
        queries: Unit length, ``[heads, n, Dk]``.
        keys: Unit length, ``[heads, n, Dk]``.
        values: ``[heads, n, Dv]``.
        decay: ``g``, at most 0, ``[heads, n]``.
        rate: ``b``, ``[heads, n]``.
    """

    __slots__ = ("decay", "keys", "queries", "rate", "values")

    def __init__(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        decay: torch.Tensor,
        rate: torch.Tensor,
    ) -> None:
        """Prepare rows as the layer has them.

        Args:
            queries: ``[n, key_heads, Dk]``, any float dtype; each head serves
                ``heads / key_heads`` neighbouring value heads.
            keys: The same shape.
            values: ``[n, heads, Dv]``.
            decay: float32 ``[n, heads]``.
            rate: ``[n, heads]``.
        """
        group = values.shape[1] // keys.shape[1]
        self.queries = _heads_first(_unit(queries), group)
        self.keys = _heads_first(_unit(keys), group)
        self.values = values.float().transpose(0, 1).contiguous()
        self.decay = decay.float().T.contiguous()
        self.rate = rate.float().T.contiguous()

    @property
    def rows(self) -> int:
        """Rows that were prepared."""
        return self.values.shape[1]


def advance(steps: Steps, state: torch.Tensor, *, recurrent: bool = False) -> torch.Tensor:
    """Move ``state`` past the rows, in place, and return their outputs ``[n, heads, Dv]``.

    Args:
        steps: The rows.
        state: float32 ``[heads, Dk, Dv]``, contiguous.
        recurrent: Take the recurrent form whatever the number of rows.
    """
    if recurrent or steps.rows <= RECURRENT_ROWS_MAX:
        return advance_rows(steps, state)
    return advance_blocks(steps, state)


def advance_rows(steps: Steps, state: torch.Tensor) -> torch.Tensor:
    """Apply the rule row by row; see ``advance``.

    Sums run over the state's rows by element, not by a matrix product: where a row lies in memory
    cannot change its bits.
    """
    heads, rows, width = steps.values.shape
    out = state.new_empty(rows, heads, width)
    queries = steps.queries / steps.queries.shape[2] ** 0.5
    decay, rate = steps.decay.exp(), steps.rate
    for row in range(rows):
        key = steps.keys[:, row, :, None]
        state *= decay[:, row, None, None]
        known = (state * key).sum(dim=1)
        change = (steps.values[:, row] - known) * rate[:, row, None]
        state += key * change[:, None, :]
        torch.sum(state * queries[:, row, :, None], dim=1, out=out[row])
    return out


def advance_each(steps: Steps, states: torch.Tensor) -> torch.Tensor:
    """Move ``n`` streams past one row each: ``advance_rows`` with the streams in one operation.

    Args:
        steps: Their rows, one of each stream.
        states: float32 ``[n, heads, Dk, Dv]``, contiguous, changed in place.

    Returns:
        ``[n, heads, Dv]``.
    """
    queries = steps.queries.transpose(0, 1) / steps.queries.shape[2] ** 0.5
    keys = steps.keys.transpose(0, 1)[:, :, :, None]
    states *= exp(steps.decay.T)[:, :, None, None]
    known = (states * keys).sum(dim=2)
    change = (steps.values.transpose(0, 1) - known) * steps.rate.T[:, :, None]
    states += keys * change[:, :, None]
    out: torch.Tensor = (states * queries[:, :, :, None]).sum(dim=2)
    return out


def advance_blocks(steps: Steps, state: torch.Tensor) -> torch.Tensor:
    """Apply the rule in blocks of ``BLOCK_ROWS`` rows, counted from the first; see ``advance``.

    Inside a block, with ``G`` the running sum of ``g``, the changes ``u_i`` that the rows write are
    ``u_i = b_i (v_i - e^{G_i} S^T k_i - sum_{j<i} e^{G_i - G_j} (k_i . k_j) u_j)`` (section 3.3 of
    the paper): a unit lower triangular system, solved for values and keys before the old state is
    known, so that only products with it are left. The last block is filled up with rows of zeros,
    which change nothing. Operations stand in the order of transformers' own form, whose bits these
    are.
    """
    heads, rows, width = steps.values.shape
    out = state.new_empty(rows, heads, width)
    for begin in range(0, rows, BLOCK_ROWS):
        count = min(BLOCK_ROWS, rows - begin)
        block = _block(steps, begin, count, state)
        out[begin : begin + count] = block[:, :count].transpose(0, 1)
    return out


def _block(steps: Steps, begin: int, count: int, state: torch.Tensor) -> torch.Tensor:
    """Move ``state`` past one block and return its outputs ``[heads, BLOCK_ROWS, Dv]``."""
    queries, keys, values, decay, rate = (
        _filled(one, begin, count)
        for one in (steps.queries, steps.keys, steps.values, steps.decay, steps.rate)
    )
    queries = queries * queries.shape[2] ** -0.5
    total = decay.cumsum(dim=1)
    grown = total.exp()[:, :, None]
    # Above the diagonal the difference may be large and positive: it is cut off before exp.
    between = total[:, :, None] - total[:, None, :]
    future = torch.ones(between.shape[1:], dtype=torch.bool, device=state.device).triu(1)
    between = between.masked_fill_(future, float("-inf")).exp_()
    rated = keys * rate[:, :, None]
    system = (rated @ keys.transpose(1, 2)) * between
    inside = (queries @ keys.transpose(1, 2)) * between
    written, read = (
        torch.linalg.solve_triangular(system, one, upper=False, unitriangular=True)
        for one in (values * rate[:, :, None], rated * grown)
    )
    change = written - read @ state
    out: torch.Tensor = (queries * grown) @ state + inside @ change
    left = (total[:, -1:] - total).exp()[:, :, None]
    state *= total[:, -1, None, None].exp()
    state += (keys * left).transpose(1, 2) @ change
    return out


def _filled(rows: torch.Tensor, begin: int, count: int) -> torch.Tensor:
    """Return ``BLOCK_ROWS`` rows ``[heads, BLOCK_ROWS, ...]``, zeros after the first ``count``."""
    block = rows.new_zeros(rows.shape[0], BLOCK_ROWS, *rows.shape[2:])
    block[:, :count] = rows[:, begin : begin + count]
    return block


def _unit(heads: torch.Tensor) -> torch.Tensor:
    """Return float32 vectors of (almost) unit length along the last dimension.

    Rows are made contiguous first: a sum over rows that lie apart is rounded in another order.
    """
    wide = heads.float().contiguous()
    return wide * torch.rsqrt((wide * wide).sum(dim=-1, keepdim=True) + _LENGTH_EPSILON)


def _heads_first(rows: torch.Tensor, group: int) -> torch.Tensor:
    """Return ``[n, key_heads, D]`` as ``[key_heads * group, n, D]``, contiguous."""
    if group > 1:
        rows = rows.repeat_interleave(group, dim=1)
    return rows.transpose(0, 1).contiguous()
