"""What a family's file gives the engine: layers, what they keep for each slot, and the ends.

It holds the shapes of the conversation only; no family, no plan and no bytes.

A family is one module named as its ``model_type`` (``families.py`` lists them) with

- ``make_layer(family, index, weights, setup) -> Layer``: layer ``index`` of the model, counted from
  the model's first layer; ``weights`` reads names relative to that layer;
- optionally ``make_ends(family, weights, setup) -> Ends``: embedding, final norm and head where
  ``ends.py``'s are not the family's; ``weights`` then reads the checkpoint's own names;
- optionally ``check(family, setup) -> None``: ``ConfigError`` or ``CheckpointError`` for what the
  family's layers cannot do, raised before any weights are read;
- optionally ``INVARIANT = True``: its layers pad as ``Setup.row_step`` and ``kv_step`` say, so that
  a stream's bits do not depend on neighbours or chunks; without it the mode is refused;
- optionally ``GRAPHS = True``: its layers do as ``Batch.bucket`` says, and then read no device
  tensor on the host and leave what the host knows of a slot to ``LayerSlots.note``, so that a CUDA
  graph can replay them;
- optionally ``FLOAT32 = ("A_log", ...)``: tensors, by the end of their names, that are held in
  float32 whatever the compute dtype is.

The rules that make a split equal the whole, byte for byte: a layer's output depends only on its
rows, the batch and the slots' states; never on its index (beyond what the config says of it), on
the slot's number, on what the slot held before, or on how many layers the stage has.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Batch",
    "Ends",
    "Layer",
    "LayerSlots",
    "Part",
    "Piece",
    "Setup",
    "Weights",
]

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """What every layer of a stage is made for.

    Attributes:
        device: Where weights, states and rows are.
        dtype: Compute and row dtype.
        kv_dtype: dtype of keys and values (and of latents).
        context: Most positions of one stream.
        slots: Streams that can be open at once.
        rows_max: Most rows of one batch.
        row_step: Rows that a batch, a stream's queries and an expert's rows are padded to a
            multiple of in batch-invariant mode; 1 where nothing is padded.
        kv_step: Positions that a stream's keys are padded to a multiple of, likewise.
        made: What ``once`` made; nothing else touches it.
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    context: int
    slots: int
    rows_max: int
    row_step: int = 1
    kv_step: int = 1
    made: dict[object, object] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def invariant(self) -> bool:
        """Whether a stream's bits may not depend on its neighbours or its chunks."""
        return self.row_step > 1

    def once(self, key: object, make: Callable[[], Made]) -> Made:
        """Return ``make()``, made at the first call with ``key`` and shared by the stage's layers.

        For tables that are equal for every layer of a kind; made at load, never changed.
        """
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]  # type: ignore[return-value]


class Weights(Protocol):
    """Reads the tensors of one layer; each name is read once, into aligned memory.

    Names are relative to where the reader stands (``"self_attn.q_proj.weight"``).
    """

    def has(self, name: str) -> bool:
        """Whether the checkpoint has the tensor."""
        ...

    def read(self, *names: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the tensors, one after the other along their first dimension, in one block.

        On the setup's device, in ``dtype`` or else the compute dtype (float32 for the family's
        ``FLOAT32``), 64-byte aligned.
        """
        ...

    def stack(self, groups: Sequence[Sequence[str]]) -> torch.Tensor:
        """Return ``[len(groups), ...]``; each group is read as ``read`` does."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """The rows ``begin..end`` of a batch that belong to the stream in ``slot``.

    ``first`` is the position of the piece's first row, ``last`` the one after its last row.
    """

    slot: int
    first: int
    begin: int
    end: int

    @property
    def last(self) -> int:
        """Positions that the stream holds after this piece."""
        return self.first + self.end - self.begin

    @property
    def rows(self) -> int:
        """Rows of the piece."""
        return self.end - self.begin


class Batch:
    """Rows that are computed together: stream after stream, in plan order.

    Attributes:
        pieces: What each stream has of the rows; a slot stands at most once.
        rows: Rows of the tensor that layers are handed. In batch-invariant mode rows beyond the
            last piece's end are padding: zeros at first, whatever row-wise work makes of them
            later; no state may see them, and what a layer returns there is not read.
        positions: int64 ``[rows]`` on the device; 0 for padding.
        slots: int64 ``[rows]`` on the device: the slot of each row; 0 for padding.
        bucket: 0: attend piece by piece. Above 0: every piece has one row, and layers attend over
            the first ``bucket`` positions of the slots under a mask made from ``positions``, so
            that nothing but the contents of device tensors differs between two batches of one
            shape (what a CUDA graph needs). ``forward`` may then run twice for one round, once
            without computing: it changes no number that the host keeps.
    """

    __slots__ = ("_made", "bucket", "pieces", "positions", "rows", "slots")

    def __init__(
        self,
        pieces: tuple[Piece, ...],
        rows: int,
        positions: torch.Tensor,
        slots: torch.Tensor,
        bucket: int = 0,
    ) -> None:
        """Take the parts of a checked batch."""
        self.pieces = pieces
        self.rows = rows
        self.positions = positions
        self.slots = slots
        self.bucket = bucket
        self._made: dict[object, object] = {}

    @classmethod
    def of(cls, pieces: Sequence[Piece], setup: Setup, bucket: int = 0) -> Batch:
        """Make the batch of ``pieces``, padded as the setup says."""
        used = pieces[-1].end if pieces else 0
        rows = -(-used // setup.row_step) * setup.row_step
        both = torch.zeros((2, rows), dtype=torch.int64)
        positions, slots = both
        for piece in pieces:
            torch.arange(piece.first, piece.last, out=positions[piece.begin : piece.end])
            slots[piece.begin : piece.end] = piece.slot
        if setup.device.type != "cpu":
            positions, slots = both.to(setup.device, non_blocking=True)
        return cls(tuple(pieces), rows, positions, slots, bucket)

    def once(self, key: object, make: Callable[[Batch], Made]) -> Made:
        """Return ``make(batch)``, made at the first call with ``key`` and shared by all layers.

        For what every layer of a kind needs of a batch: cosines and sines, masks. Layers that may
        share it must agree in the key, and nothing may change what was made.
        """
        if key not in self._made:
            self._made[key] = make(self)
        return self._made[key]  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Shape and dtype of one tensor of a saved state."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class LayerSlots(Protocol):
    """What one layer keeps of each stream: keys and values, a latent, a recurrent state.

    Positions are counted by the engine; every call says which it means. The engine calls
    ``can_cut`` on all layers of all streams of a round before it changes anything.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        ...

    def clear(self, slot: int) -> None:
        """Forget what the slot held: a new stream is at position 0; the one before was cut to 0."""
        ...

    def can_cut(self, slot: int, held: int, position: int) -> bool:
        """Whether the slot, now at ``held``, can go back to ``0 <= position <= held``."""
        ...

    def cut(self, slot: int, held: int, position: int) -> None:
        """Go back to ``position``: as if the rows from there on had never been computed."""
        ...

    def note(self, batch: Batch) -> None:
        """Do the host's part of a batch with a ``bucket``, once, before it runs or is replayed."""
        ...

    def parts(self, position: int) -> tuple[Part, ...]:
        """Say what ``save`` at ``position`` returns and ``restore`` takes; a pure function."""
        ...

    def save(self, slot: int, position: int) -> Sequence[torch.Tensor]:
        """Return the state at ``position`` (where the slot is now), as ``parts`` says; views do."""
        ...

    def restore(self, slot: int, position: int, parts: Sequence[torch.Tensor]) -> None:
        """Put a saved state into a slot that no stream holds; ``parts`` are CPU tensors."""
        ...


class Layer(Protocol):
    """One decoder layer with its weights."""

    def make_slots(self) -> LayerSlots:
        """Allocate what the layer keeps, for all slots of the setup."""
        ...

    def forward(self, rows: torch.Tensor, batch: Batch, slots: LayerSlots) -> torch.Tensor:
        """Return the rows after this layer, ``[batch.rows, width]``.

        ``rows`` belongs to the layer: it may be overwritten and returned.

        Advances the slots of the batch's pieces to ``piece.last``.
        """
        ...


class Ends(Protocol):
    """What only the lead has: token ids to rows, rows to logits."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return new rows ``[n, width]`` in the compute dtype for int64 ids ``[n]``."""
        ...

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits ``[n, vocab]``, any float dtype, of the last layer's rows."""
        ...

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the last layer's rows after the final norm, ``[n, width]``: what drafters read."""
        ...

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Return logits ``[n, vocab]`` of rows after the final norm."""
        ...
