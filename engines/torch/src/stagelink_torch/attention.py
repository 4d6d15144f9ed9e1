"""Grouped-query attention: projections, head norms, RoPE, windows, sinks; the KV is in kv.py.

It norms no row and adds no residual; a family's layer does.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink_torch.kv import KvSlots
from stagelink_torch.product import Matrix

if TYPE_CHECKING:
    from stagelink_torch.layer import Batch, Piece, Setup, Weights
    from stagelink_torch.norm import RmsNorm
    from stagelink_torch.rope import Rope


# Most bytes of a mask of numbers: a piece whose mask would be larger attends in parts, whose rows
# follow from the piece alone.
_MASK_BYTES_MAX = 256 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionShape:
    """The numbers of an attention.

    Attributes:
        heads: Query heads, a multiple of ``kv_heads``.
        kv_heads: Key and value heads.
        head_width: Values of a head.
        scale: Factor on the products of queries and keys.
        window: Positions that a row sees, its own included; 0 for all.
    """

    heads: int
    kv_heads: int
    head_width: int
    scale: float
    window: int = 0


class Attention:
    """The attention block of one layer, from normed rows to the change of the residual."""

    def __init__(
        self,
        shape: AttentionShape,
        weights: Weights,
        setup: Setup,
        *,
        rope: Rope | None,
        norms: tuple[RmsNorm, RmsNorm] | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Read ``self_attn.{q,k,v,o}_proj``, with biases where the checkpoint has them.

        Args:
            shape: The numbers.
            weights: Stands at the layer.
            setup: Device, dtypes, slots.
            rope: Turns queries and keys; ``None`` in a layer without positions.
            norms: Of each query head and of each key head.
            sinks: ``[heads]``: a logit that takes part in every row's softmax and adds nothing.
        """
        self._shape, self._setup = shape, setup
        self._rope, self._norms = rope, norms
        names = [f"self_attn.{part}_proj" for part in ("q", "k", "v")]
        self._qkv = _read_matrix(weights, setup, *names)
        self._out = _read_matrix(weights, setup, "self_attn.o_proj")
        self._attend = Attend(shape, setup, sinks)

    def make_slots(self) -> KvSlots:
        """Allocate the layer's KV."""
        return self._attend.make_slots()

    def __call__(self, rows: torch.Tensor, batch: Batch, slots: KvSlots) -> torch.Tensor:
        """Return the change ``[rows, width]`` and put the rows' keys and values into the slots."""
        shape = self._shape
        heads = self._qkv(rows).view(len(rows), -1, shape.head_width)
        both = shape.heads + shape.kv_heads
        turned, values = heads[:, :both], heads[:, both:]
        if self._norms is not None:
            queries, keys = turned[:, : shape.heads], turned[:, shape.heads :]
            turned = torch.cat((self._norms[0](queries), self._norms[1](keys)), dim=1)
        if self._rope is not None:
            turned = self._rope.turn(turned, batch)
        slots.put(turned[:, shape.heads :], values, batch)
        attended = self._attend(turned[:, : shape.heads], batch, slots)
        return self._out(attended)


class Attend:
    """Softmax attention of a batch's queries over the slots' keys and values."""

    def __init__(
        self, shape: AttentionShape, setup: Setup, sinks: torch.Tensor | None = None
    ) -> None:
        """Take the numbers; ``sinks`` ``[heads]`` in the compute dtype."""
        self._shape, self._setup = shape, setup
        # A sink is a key of zeros before position 0 whose product is replaced by the sink's logit.
        self._sinks = None if sinks is None else sinks.view(1, -1, 1, 1)
        # CUDA's fast kernels take no groups of heads together with a mask, nor in float32: there a
        # group becomes rows of its key head.
        on_cuda, is_wide = setup.device.type == "cuda", setup.dtype == torch.float32
        self._packs_masked, self._packs_all = on_cuda, on_cuda and is_wide

    def make_slots(self) -> KvSlots:
        """Allocate the KV that this attention reads."""
        shape = self._shape
        reserved = 0 if self._sinks is None else 1
        return KvSlots(shape.kv_heads, shape.head_width, self._setup, reserved)

    def __call__(self, queries: torch.Tensor, batch: Batch, slots: KvSlots) -> torch.Tensor:
        """Return ``[rows, heads * head_width]`` for turned ``[rows, heads, head_width]``."""
        if batch.bucket:
            return self._bucketed(queries, batch, slots)
        if len(batch.pieces) == 1 and batch.pieces[0].rows == len(queries):
            return self._piece(queries, batch.pieces[0], slots)
        shape = self._shape
        out = queries.new_zeros(len(queries), shape.heads * shape.head_width)
        for piece in batch.pieces:
            out[piece.begin : piece.end] = self._piece(
                queries[piece.begin : piece.end], piece, slots
            )
        return out

    def _piece(self, queries: torch.Tensor, piece: Piece, slots: KvSlots) -> torch.Tensor:
        """Attend with one stream's rows ``[n, heads, head_width]``."""
        count = len(queries)
        low, high = self._span(piece)
        keys, values = self._past(slots, piece.slot, low, high)
        if self._setup.row_step > 1 and count % self._setup.row_step:
            padded = queries.new_zeros(
                -(-count // self._setup.row_step) * self._setup.row_step, *queries.shape[1:]
            )
            padded[:count] = queries
            queries = padded
        past = keys[None], values[None]
        causal = self._causality(piece, low, high)
        if causal is not None:
            return self._product(queries[None], past, None, causal=causal)[:count]
        step = self._rows_at_once(high - low)
        parts = []
        for begin in range(0, len(queries), step):
            part = queries[None, begin : begin + step]
            mask = self._mask(piece.first + begin, part.shape[1], low, high)
            parts.append(self._product(part, past, mask, causal=False))
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[:count]

    def _span(self, piece: Piece) -> tuple[int, int]:
        """Return the positions that a piece reads; padded in batch-invariant mode."""
        if self._setup.invariant:
            step = self._setup.kv_step
            reserved = 0 if self._sinks is None else 1
            return 0, -(-(piece.last + reserved) // step) * step - reserved
        window = self._shape.window
        return (max(0, piece.first + 1 - window) if window else 0), piece.last

    def _past(
        self, slots: KvSlots, slot: int, low: int, high: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of the span, the sink's zeros before them, in the row dtype."""
        first, last = low + slots.reserved, high + slots.reserved
        both = []
        for held in (slots.keys[slot], slots.values[slot]):
            if not slots.reserved or first == slots.reserved:
                part = held[:, first - slots.reserved : last]
            else:
                part = torch.cat((held[:, : slots.reserved], held[:, first:last]), dim=1)
            both.append(part if part.dtype == self._setup.dtype else part.to(self._setup.dtype))
        return both[0], both[1]

    def _causality(self, piece: Piece, low: int, high: int) -> bool | None:
        """Return whether plain causality says what a piece's rows see of the span; else ``None``.

        ``False``: they see all of it.
        """
        if self._sinks is not None or self._setup.invariant or low != 0:
            return None
        if piece.rows == 1:
            return False
        window = self._shape.window
        # Packed rows of a group are not in the order of positions.
        is_plain = piece.first == 0 and (not window or high <= window) and not self._packs_all
        return True if is_plain else None

    def _rows_at_once(self, keys: int) -> int:
        """Return how many rows attend under one mask, a multiple of the padding's step."""
        shape, setup = self._shape, self._setup
        heads = 1 if self._sinks is None else shape.heads
        if self._packs_masked:
            heads = max(heads, shape.heads // shape.kv_heads)
        step = setup.row_step
        return max(1, _MASK_BYTES_MAX // (heads * keys * setup.dtype.itemsize) // step) * step

    def _mask(self, first: int, rows: int, low: int, high: int) -> torch.Tensor:
        """Return what rows from position ``first`` on see of the span."""
        window, device = self._shape.window, self._setup.device
        at = torch.arange(first, first + rows, device=device)[:, None]
        seen = torch.arange(low, high, device=device)[None, :]
        mask = seen <= at
        if window:
            mask &= seen > at - window
        return self._biased(mask[None, None])

    def _biased(self, mask: torch.Tensor) -> torch.Tensor:
        """Return the mask, ``[n, 1, rows, keys]``, with the sinks' column before it."""
        if self._sinks is None:
            return mask
        dtype = self._setup.dtype
        bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        bias.masked_fill_(~mask, float("-inf"))
        batch, _, rows, keys = bias.shape
        heads = self._shape.heads
        sinks = self._sinks.to(dtype).expand(batch, heads, rows, 1)
        return torch.cat((sinks, bias.expand(batch, heads, rows, keys)), dim=-1)

    def _product(
        self,
        queries: torch.Tensor,
        past: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        *,
        causal: bool,
    ) -> torch.Tensor:
        """Return ``[n * rows, heads * head_width]`` of queries ``[n, rows, heads, head_width]``."""
        packs = self._packs_all if mask is None else self._packs_masked
        product = _packed if packs and not causal else _grouped
        attended = product(queries, past, mask, self._shape, causal=causal)
        return attended.reshape(-1, self._shape.heads * self._shape.head_width)

    def _bucketed(self, queries: torch.Tensor, batch: Batch, slots: KvSlots) -> torch.Tensor:
        """Attend with one row a stream over the first ``bucket`` positions, all in one call.

        Nothing here depends on a number that is not in a tensor: a CUDA graph can replay it.
        """
        span = slice(0, batch.bucket + slots.reserved)
        past = tuple(
            held[:, :, span].index_select(0, batch.slots).to(self._setup.dtype)
            for held in (slots.keys, slots.values)
        )
        mask = batch.once(("bucket mask", self._shape.window), self._bucket_mask)
        return self._product(queries[:, None], (past[0], past[1]), self._biased(mask), causal=False)

    def _bucket_mask(self, batch: Batch) -> torch.Tensor:
        """Return what each row sees of the bucket, ``[rows, 1, 1, bucket]``."""
        seen = torch.arange(batch.bucket, device=self._setup.device)[None]
        at = batch.positions[:, None]
        mask = seen <= at
        if self._shape.window:
            mask &= seen > at - self._shape.window
        return mask[:, None, None]


def _read_matrix(weights: Weights, setup: Setup, *names: str) -> Matrix:
    """Read projections as one matrix, with their biases where the checkpoint has them."""
    bias = None
    if weights.has(names[0] + ".bias"):
        bias = weights.read(*[name + ".bias" for name in names])
    return Matrix(weights.read(*[name + ".weight" for name in names]), setup, bias)


def _grouped(
    queries: torch.Tensor,
    past: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    shape: AttentionShape,
    *,
    causal: bool,
) -> torch.Tensor:
    """Attend by torch's own grouping; ``[n, rows, heads, head_width]`` in and out."""
    return functional.scaled_dot_product_attention(
        queries.transpose(1, 2),
        *past,
        attn_mask=mask,
        is_causal=causal,
        scale=shape.scale,
        enable_gqa=shape.heads != shape.kv_heads,
    ).transpose(1, 2)


def _packed(
    queries: torch.Tensor,
    past: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    shape: AttentionShape,
    *,
    causal: bool,
) -> torch.Tensor:
    """Attend with each group of heads as rows of its key head; as ``_grouped``, with a mask."""
    batch, rows = queries.shape[:2]
    group = shape.heads // shape.kv_heads
    form = (batch, shape.kv_heads, group * rows, -1)
    packed = queries.transpose(1, 2).reshape(form)
    if mask is not None:
        # A mask for all heads is repeated for the rows of a group, not for every key head.
        heads = 1 if mask.shape[1] == 1 else shape.kv_heads
        mask = mask.expand(batch, heads * group, rows, -1).reshape(batch, heads, group * rows, -1)
    attended = functional.scaled_dot_product_attention(
        packed, *past, attn_mask=mask, is_causal=causal, scale=shape.scale
    )
    return attended.reshape(batch, shape.heads, rows, -1).transpose(1, 2)
