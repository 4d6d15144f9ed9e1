"""Families that know their tensors from the checkpoint's table, not from a formula.

It reads no config; ``wide.py`` and ``gguf_family.py`` do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.families.base import Family, Shapes
from stagelink.checkpoint.refusal import refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.opened import TensorInfo

OTHER: Final = "other"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFamily(Family):
    """A decoder whose layers are found by the names of its tensors.

    Attributes:
        shapes: Shape of every tensor of the checkpoint; empty where the table was not handed in.
        layers_at: What the names of all layers' tensors start with: ``"model.layers."``.
        tail_at: What those of the layers from ``tail_first`` on start with, where they are counted
            from 0 again under another name; empty where all are under one.
        tail_first: The first of those layers.
    """

    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict, hash=False)
    layers_at: str = "model.layers."
    tail_at: str = ""
    tail_first: int = 0

    def layer_prefix(self, n: int) -> str:
        """Return what the names of layer ``n``'s tensors start with."""
        if self.tail_at and n >= self.tail_first:
            return f"{self.tail_at}{n - self.tail_first}."
        return f"{self.layers_at}{n}."

    def layer_shapes(self, n: int) -> Shapes:
        """Return what the checkpoint has under the layer's prefix.

        Raises:
            ValueError: The family was read without the checkpoint's table.
        """
        at = self.layer_prefix(n)
        known = self._known().items()
        return {name.removeprefix(at): one for name, one in known if name.startswith(at)}

    def embed_tensors(self) -> Shapes:
        """Return everything that is in no layer: this family cannot tell embedding from head."""
        known = self._known().items()
        layers = (self.layers_at, self.tail_at) if self.tail_at else (self.layers_at,)
        return {name: one for name, one in known if not name.startswith(layers)}

    def head_tensors(self) -> Shapes:
        """Return the same as ``embed_tensors``."""
        return self.embed_tensors()

    def all_tensors(self) -> Shapes:
        """Return every tensor of the checkpoint."""
        return dict(self._known())

    def understood(self) -> dict[str, Any]:
        """Return every field but the shapes: the table has a digest of its own."""
        return dataclasses.asdict(dataclasses.replace(self, shapes={}))

    def check_tensors(self, tensors: Mapping[str, TensorInfo], where: str = "checkpoint") -> None:
        """Refuse a table in which a layer has no tensors.

        Raises:
            CheckpointError: ``tensor_missing``.
        """
        depths = {at.count(".") for at in (self.layers_at, self.tail_at) if at}
        found = {".".join(name.split(".")[: at + 1]) for name in tensors for at in depths}
        missing = [n for n in range(self.layers) if self.layer_prefix(n)[:-1] not in found]
        if missing:
            expected, got = f"tensors of {self.layers} layers", f"none of layer {missing[0]}"
            advice = "fetch or export the checkpoint again"
            raise refuse("tensor_missing", where, expected=expected, got=got, advice=advice)

    def _known(self) -> Mapping[str, tuple[int, ...]]:
        if not self.shapes:
            message = f"{self.model_type}: read_family was not handed the checkpoint's tensors"
            raise ValueError(message)
        return self.shapes
