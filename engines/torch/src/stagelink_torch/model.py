"""The layers of a stage with their slots, over one batch of rows; and the lead's ends.

It knows no plan and no bytes; what a layer is, its family's file says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.ends import make_ends

if TYPE_CHECKING:
    import torch

    from stagelink.engine import Family
    from stagelink_torch.families import FamilyModule
    from stagelink_torch.layer import Batch, Ends, Layer, LayerSlots, Setup
    from stagelink_torch.weights import StageReader


class Model:
    """What one stage computes with.

    Attributes:
        slots: What each own layer keeps, in order.
    """

    def __init__(
        self, layers: list[Layer], slots: list[LayerSlots], ends: Ends | None, setup: Setup
    ) -> None:
        """Take loaded layers, their slots, and the ends on the lead."""
        self._layers = layers
        self.slots = slots
        self._ends = ends
        self._setup = setup

    @classmethod
    def read(
        cls,
        family: Family,
        module: FamilyModule,
        span: tuple[int, int],
        reader: StageReader,
        setup: Setup,
        *,
        lead: bool,
    ) -> Model:
        """Read layers ``span`` and, on the lead, the ends; then allocate the slots."""
        layers = []
        for index in range(*span):
            weights = reader.at(family.layer_prefix(index))
            layers.append(module.make_layer(family, index, weights, setup))
        ends = None
        if lead:
            ends = getattr(module, "make_ends", make_ends)(family, reader.at(""), setup)
        return cls(layers, [layer.make_slots() for layer in layers], ends, setup)

    @property
    def ends(self) -> Ends:
        """The lead's ends, which the engine checked to be here."""
        if self._ends is None:
            raise AssertionError("a follower has no embedding and no head")
        return self._ends

    def run(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Run a batch's rows ``[batch.rows, width]``, which are used up, through every layer."""
        for layer, slots in zip(self._layers, self.slots, strict=True):
            rows = layer.forward(rows, batch, slots)
        return rows

    def note(self, batch: Batch) -> None:
        """Let every layer do the host's part of a batch that is recorded or replayed."""
        for slots in self.slots:
            slots.note(batch)

    def clear(self, slot: int) -> None:
        """Let every layer forget what a slot held."""
        for slots in self.slots:
            slots.clear(slot)

    def forget(self, slot: int, held: int) -> None:
        """Cut a slot that holds ``held`` positions to none, in every layer, and clear it."""
        for slots in self.slots:
            slots.cut(slot, held, 0)
        self.clear(slot)

    def embed(self, token_ids: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return a batch's rows for checked ids; padding rows are zeros."""
        rows = self.ends.embed(token_ids)
        return _padded(rows, batch.rows)

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        """Return float32 logits ``[n, vocab]`` of the last layer's rows."""
        step = self._setup.row_step
        count = len(rows)
        padded = _padded(rows, -(-count // step) * step)
        return self.ends.head(padded)[:count].float()


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return ``rows`` with rows of zeros behind, ``count`` in all; themselves where none is."""
    if len(rows) == count:
        return rows
    padded = rows.new_zeros(count, *rows.shape[1:])
    padded[: len(rows)] = rows
    return padded
