"""Multi-head latent attention: one small latent a position instead of keys and values.

It knows no norm around it and no feed-forward block; deepseek_v2.py and deepseek_v3.py do.

Source: DeepSeek-V2, arXiv 2405.04434, section 2.1. A position keeps ``kv_lora + rope`` values: the
normed latent ``c`` and the turned key that all heads share. Of head ``h``, the key is
``[W_uk_h c; k_rope]`` and the value ``W_uv_h c``. Two forms give the same numbers but for rounding.
*Absorbed*: queries move into the latent's space (``W_uk_h^T q``) and attend to latents. *Expanded*:
latents become keys and values first. Which one a piece takes depends on its rows alone.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from stagelink_torch.layer import Part
from stagelink_torch.norm import RmsNorm
from stagelink_torch.rope import Rope, yarn_scale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagelink_torch.layer import Batch, Piece, Setup, Weights

__all__ = ["LatentAttention", "LatentShape", "LatentSlots"]

# The two latent norms have this, whatever the config's own epsilon is.
_LATENT_EPSILON = 1e-6
# Above so many rows the absorbed form's scores, [heads, rows, positions], take too much memory.
_ABSORBED_ROWS_MAX = 32
_STEP = 64


@dataclasses.dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of one layer's attention, and the factor on its logits.

    ``query_rank`` is 0 where queries are projected in one step.
    """

    heads: int
    query_rank: int
    rank: int
    plain: int
    turned: int
    value: int
    scale: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LatentShape:
        """Read a DeepSeek config as transformers 5 spells it."""
        plain, turned = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        return cls(
            heads=config["num_attention_heads"],
            query_rank=config["q_lora_rank"] or 0,
            rank=config["kv_lora_rank"],
            plain=plain,
            turned=turned,
            value=config["v_head_dim"],
            scale=(plain + turned) ** -0.5 * _stretch(config["rope_parameters"]) ** 2,
        )

    @property
    def query(self) -> int:
        """Values of one head's query and key."""
        return self.plain + self.turned

    @property
    def query_ends(self) -> list[int]:
        """Where each head's rows end in the queries' projection."""
        return [head * self.query for head in range(1, self.heads + 1)]

    @property
    def latent(self) -> int:
        """Values that a position keeps."""
        return self.rank + self.turned

    @property
    def absorbed_rows_max(self) -> int:
        """Most rows for which the absorbed form costs fewer products than the expanded one."""
        dearer = self.rank + self.latent - self.query - self.value
        if dearer <= 0:
            return _ABSORBED_ROWS_MAX
        return min(self.rank * (self.plain + self.value) // dearer, _ABSORBED_ROWS_MAX)


class LatentSlots:
    """Latents ``[slots, positions, kv_lora + rope]``: a cut is a smaller position, nothing else."""

    def __init__(self, width: int, setup: Setup) -> None:
        """Allocate zeros for all slots; pages are touched when they are first used."""
        step = math.lcm(_STEP, setup.kv_step)
        padded = -(-setup.context // step) * step
        shape = (setup.slots, padded, width)
        self.latents = torch.zeros(shape, dtype=setup.kv_dtype, device=setup.device)
        # Padded reads see what is beyond a stream's end, times zero: it must be finite.
        self._wipe_slot = setup.invariant
        self._wipe_cut = setup.invariant or setup.device.type != "cpu"

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.latents.nbytes

    def put(self, latents: torch.Tensor, batch: Batch) -> None:
        """Store the rows' latents ``[rows, width]`` at their positions."""
        if batch.bucket:
            self.latents[batch.slots, batch.positions] = latents.to(self.latents.dtype)
            return
        for piece in batch.pieces:
            part = latents[piece.begin : piece.end]
            self.latents[piece.slot, piece.first : piece.last] = part

    def clear(self, slot: int) -> None:
        """Wipe the whole slot where every read is padded; else what ended was cut to 0."""
        if self._wipe_slot:
            self.latents[slot].zero_()

    def can_cut(self, slot: int, held: int, position: int) -> bool:  # noqa: ARG002
        """Say yes: every position is kept."""
        return True

    def cut(self, slot: int, held: int, position: int) -> None:
        """Wipe what a padded read would see; else it is written again before it is read."""
        if self._wipe_cut:
            self.latents[slot, position:held].zero_()

    def note(self, batch: Batch) -> None:
        """Do nothing: where rows go, their positions say."""

    def parts(self, position: int) -> tuple[Part, ...]:
        """Return ``[position, width]``."""
        return (Part((position, self.latents.shape[2]), self.latents.dtype),)

    def save(self, slot: int, position: int) -> Sequence[torch.Tensor]:
        """Return a view of the latents."""
        return (self.latents[slot, :position],)

    def restore(self, slot: int, position: int, parts: Sequence[torch.Tensor]) -> None:
        """Copy saved latents in."""
        self.clear(slot)
        self.latents[slot, :position] = parts[0].to(self.latents.device)


class LatentAttention:
    """Projections, rotary positions and attention of one layer; no norm before, no sum after."""

    def __init__(self, config: Mapping[str, Any], weights: Weights, setup: Setup) -> None:
        """Read ``self_attn.*``; rows of a projection that are turned are put half by half."""
        self._shape = shape = LatentShape.of(config)
        self._setup = setup
        self._rope = Rope(
            config["rope_parameters"], shape.turned, config["max_position_embeddings"], setup
        )
        first = "q_a_proj" if shape.query_rank else "q_proj"
        names = (f"self_attn.{first}.weight", "self_attn.kv_a_proj_with_mqa.weight")
        self._query_norm: RmsNorm | None = None
        paired = bool(config.get("rope_interleave", True))
        down = weights.read(*names)
        ends = [len(down)]
        if shape.query_rank:
            norm = weights.read("self_attn.q_a_layernorm.weight")
            self._query_norm = RmsNorm(norm, _LATENT_EPSILON)
            up = weights.read("self_attn.q_b_proj.weight")
            self._query_up = _halved(up, shape.turned, shape.query_ends) if paired else up
        else:
            ends = [*shape.query_ends, *ends]
        self._down = _halved(down, shape.turned, ends) if paired else down
        norm = weights.read("self_attn.kv_a_layernorm.weight")
        self._latent_norm = RmsNorm(norm, _LATENT_EPSILON)
        self._up = weights.read("self_attn.kv_b_proj.weight")
        self._out = weights.read("self_attn.o_proj.weight")

    def make_slots(self) -> LatentSlots:
        """Allocate latents for all slots."""
        return LatentSlots(self._shape.latent, self._setup)

    def __call__(self, normed: torch.Tensor, batch: Batch, slots: LatentSlots) -> torch.Tensor:
        """Store the rows' latents and return what they attend to, projected: ``[rows, width]``."""
        shape = self._shape
        down = functional.linear(normed, self._down)
        sizes = [down.shape[1] - shape.latent, shape.rank, shape.turned]
        queries, latents, keys = torch.split(down, sizes, dim=1)
        if self._query_norm is not None:
            queries = functional.linear(self._query_norm(queries), self._query_up)
        queries = queries.reshape(batch.rows, shape.heads, shape.query)
        plain, turned = torch.split(queries, [shape.plain, shape.turned], dim=2)
        turned = self._rope.turn(turned, batch)
        keys = self._rope.turn(keys[:, None], batch)[:, 0]
        slots.put(torch.cat((self._latent_norm(latents), keys), dim=1), batch)
        attended = self._attend(plain, turned, batch, slots)
        return functional.linear(attended, self._out)

    def _attend(
        self, plain: torch.Tensor, turned: torch.Tensor, batch: Batch, slots: LatentSlots
    ) -> torch.Tensor:
        """Return ``[rows, heads * value]``, piece by piece; zeros for padding."""
        if batch.bucket:
            return self._bucketed(plain, turned, batch, slots)
        shape = self._shape
        out = plain.new_zeros(batch.rows, shape.heads * shape.value)
        for piece in batch.pieces:
            part = slice(piece.begin, piece.end)
            absorbed = piece.rows <= shape.absorbed_rows_max and not self._setup.invariant
            form = self._absorbed if absorbed else self._expanded
            out[part] = form(plain[part], turned[part], piece, slots.latents[piece.slot])
        return out

    def _absorbed(
        self, plain: torch.Tensor, turned: torch.Tensor, piece: Piece, latents: torch.Tensor
    ) -> torch.Tensor:
        """Attend to the latents themselves: ``[n, heads * value]``."""
        shape, held = self._shape, latents[: piece.last].to(plain.dtype)
        keys_up, values_up = self._ups()
        moved = torch.bmm(plain.transpose(0, 1), keys_up)
        queries = torch.cat((moved, turned.transpose(0, 1)), dim=2).flatten(0, 1)
        logits = (queries @ held.T).float().view(shape.heads, piece.rows, piece.last)
        logits = logits.mul_(shape.scale)
        if piece.rows > 1:
            logits.masked_fill_(_future(piece, piece.last, logits.device), float("-inf"))
        weights = logits.softmax(dim=2).to(plain.dtype)
        mixed = (weights.flatten(0, 1) @ held[:, : shape.rank]).view(shape.heads, piece.rows, -1)
        return torch.bmm(mixed, values_up.transpose(1, 2)).transpose(0, 1).flatten(1)

    def _bucketed(
        self, plain: torch.Tensor, turned: torch.Tensor, batch: Batch, slots: LatentSlots
    ) -> torch.Tensor:
        """Attend to latents with one row a stream, over the first ``bucket`` positions, at once.

        Nothing here depends on a number that is not in a tensor: a CUDA graph can replay it.
        """
        shape = self._shape
        held = slots.latents[:, : batch.bucket].index_select(0, batch.slots).to(plain.dtype)
        keys_up, values_up = self._ups()
        moved = torch.bmm(plain.transpose(0, 1), keys_up).transpose(0, 1)
        queries = torch.cat((moved, turned), dim=2)
        logits = torch.bmm(queries, held.transpose(1, 2)).float().mul_(shape.scale)
        logits.masked_fill_(batch.once("bucket future", _bucket_future), float("-inf"))
        weights = logits.softmax(dim=2).to(plain.dtype)
        mixed = torch.bmm(weights, held[:, :, : shape.rank]).transpose(0, 1)
        return torch.bmm(mixed, values_up.transpose(1, 2)).transpose(0, 1).flatten(1)

    def _expanded(
        self, plain: torch.Tensor, turned: torch.Tensor, piece: Piece, latents: torch.Tensor
    ) -> torch.Tensor:
        """Attend to keys and values made of the latents: ``[n, heads * value]``.

        In batch-invariant mode query rows and positions are padded; what is added is masked.
        """
        shape, setup = self._shape, self._setup
        count = -(-piece.last // setup.kv_step) * setup.kv_step
        held = latents[:count].to(plain.dtype)
        both = functional.linear(held[:, : shape.rank], self._up)
        both = both.view(count, shape.heads, -1)
        made, values = torch.split(both, [shape.plain, shape.value], dim=2)
        shared = held[:, None, shape.rank :].expand(-1, shape.heads, -1)
        keys = torch.cat((made, shared), dim=2).transpose(0, 1)
        # The fused kernel wants values as wide as keys; the columns added, of either, are zeros.
        wide = max(shape.query, shape.value)
        keys = functional.pad(keys, (0, wide - shape.query))
        values = functional.pad(values, (0, wide - shape.value)).transpose(0, 1)
        rows = -(-piece.rows // setup.row_step) * setup.row_step
        queries = plain.new_zeros(rows, shape.heads, wide)
        queries[: piece.rows, :, : shape.query] = torch.cat((plain, turned), dim=2)
        mask = ~_future(piece, count, plain.device)
        mask = functional.pad(mask, (0, 0, 0, rows - piece.rows), value=True)
        out = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=mask,
            scale=shape.scale,
        )
        return out[0].transpose(0, 1)[: piece.rows, :, : shape.value].flatten(1)

    def _ups(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of ``W_uk [heads, plain, rank]`` and ``W_uv [heads, value, rank]``."""
        shape = self._shape
        both = self._up.view(shape.heads, shape.plain + shape.value, shape.rank)
        return both[:, : shape.plain], both[:, shape.plain :]


def _stretch(rope: Mapping[str, Any]) -> float:
    """Return the growth of logits that DeepSeek puts into the softmax's scale, not the angles."""
    weight = rope.get("mscale_all_dim") or 0
    if rope.get("rope_type", "default") == "default" or not weight:
        return 1.0
    return yarn_scale(rope["factor"], weight)


def _halved(matrix: torch.Tensor, turned: int, ends: Sequence[int]) -> torch.Tensor:
    """Return the matrix with the ``turned`` rows before each of ``ends`` put half by half.

    DeepSeek turns the neighbours (2i, 2i + 1); rope.py turns (i, i + turned / 2). The order of what
    is turned is free as long as queries and keys agree.
    """
    order = torch.arange(len(matrix), device=matrix.device)
    for end in ends:
        own = order[end - turned : end].clone()
        order[end - turned : end] = torch.cat((own[0::2], own[1::2]))
    return matrix.index_select(0, order)


def _future(piece: Piece, count: int, device: torch.device) -> torch.Tensor:
    """Return bool ``[rows, count]``: what lies after each row's own position."""
    own = torch.arange(piece.first, piece.last, device=device)[:, None]
    return torch.arange(count, device=device)[None, :] > own


def _bucket_future(batch: Batch) -> torch.Tensor:
    """Return bool ``[rows, 1, bucket]``: what lies after each stream's row."""
    seen = torch.arange(batch.bucket, device=batch.positions.device)
    return (seen > batch.positions[:, None])[:, None]
