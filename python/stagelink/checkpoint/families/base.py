"""What every model family says of itself: sizes, tensors, state a layer, and where it can be cut.

It reads no config and no tensor; each family's own file does the reading.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

from stagelink.checkpoint.tensor_table import check_table
from stagelink.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagelink.checkpoint.opened import TensorInfo

Shapes: TypeAlias = dict[str, tuple[int, ...]]

FULL, SLIDING, LINEAR, MLA = "full", "sliding", "linear", "mla"

# What the engines allocate beyond the state itself: positions in such steps and a row of sinks;
# a recurrent state now and at up to three earlier points; the rows of the last pieces and spans,
# and a ring of such rows where decode rounds are replayed, as on CUDA.
_POSITIONS_STEP = 512
_SINKS = 1
_STATES_HELD = 4
_SPAN_ROWS = 16
_SPANS = 2
BODY = "model."
HEAD = "lm_head.weight"


@dataclasses.dataclass(frozen=True, slots=True)
class LayerState:
    """What one stream keeps in one layer.

    Attributes:
        kind: ``"full"``, ``"sliding"``, ``"linear"`` or ``"mla"``; ``"other"`` for a layer that no
            family here describes.
        bytes_per_position: Bytes that each position adds, up to ``window`` positions.
        bytes_fixed: Bytes that a stream takes whatever its length: conv and recurrent state.
        window: Positions that are kept, or ``None`` for all.
        bytes_per_row: Bytes of one row's inputs, kept to run it again after a cut; 0 where a cut
            needs none.
    """

    kind: str
    bytes_per_position: int
    bytes_fixed: int = 0
    window: int | None = None
    bytes_per_row: int = 0

    def bytes_at(self, positions: int) -> int:
        """Return the bytes of a stream of so many positions."""
        kept = positions if self.window is None else min(positions, self.window)
        return self.bytes_fixed + kept * self.bytes_per_position

    def bytes_held(self, context: int, piece_rows: int) -> int:
        """Return the most that the torch and numpy engines hold for one stream, on any device.

        It is more than the state itself: sliding layers keep every position, and a recurrent layer
        keeps earlier states and the rows since, so that a stream can be cut back.

        Args:
            context: Positions that a stream may have.
            piece_rows: Most rows of one piece.
        """
        positions = -(-(context + _SINKS) // _POSITIONS_STEP) * _POSITIONS_STEP
        rows = _SPANS * (max(piece_rows, _SPAN_ROWS) + _SPAN_ROWS)
        fixed = self.bytes_fixed * _STATES_HELD + self.bytes_per_row * rows
        return fixed + positions * self.bytes_per_position


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One model in numbers, as its config says it; a subclass a family.

    Attributes:
        model_type: As the text config names it: ``"llama"``, ``"qwen3_5_text"``.
        layers: Number of layers.
        width: Values of a hidden row.
        vocab: Rows of the embedding and of the head.
        context: Most positions that the config allows.
        tied: Whether the head is the embedding matrix.
        eos_ids: End-of-text ids that the config names, ascending; the tokenizer may know more.
        bos_id: Begin-of-text id, or ``None``.
        norm_epsilon: Added to the mean square in every RMSNorm.
        config: The text config as understood, with the keys of transformers 5 and JSON values only;
            what the file left out stands here with its default. Not to be changed.
        prefix: Where the body's tensors live: ``"model."`` or ``"model.language_model."``.
        layer_kinds: ``"full"``, ``"sliding"``, ``"linear"`` or ``"mla"`` of each layer.
        row_factor: Residual streams that travel as one wide boundary row.
        planes: Planes of a boundary row.
        needs_token_ids: Whether layers read token ids beside the rows.
    """

    model_type: str
    layers: int
    width: int
    vocab: int
    context: int
    tied: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
    norm_epsilon: float
    config: Mapping[str, Any] = dataclasses.field(hash=False)
    prefix: str = BODY
    layer_kinds: tuple[str, ...] = ()
    row_factor: int = 1
    planes: int = 1
    needs_token_ids: bool = False

    @property
    def row_width(self) -> int:
        """Values of one plane of one boundary row."""
        return self.width * self.row_factor

    @property
    def engine_advice(self) -> str:
        """What an engine that does not run this family tells its user to do instead."""
        return "install stagelink[transformers] and use --engine transformers"

    @property
    def embed_name(self) -> str:
        """Name of the embedding matrix."""
        return f"{self.prefix}embed_tokens.weight"

    def layer_prefix(self, n: int) -> str:
        """Return what the names of layer ``n``'s tensors start with."""
        return f"{self.prefix}layers.{n}."

    def layer_shapes(self, n: int) -> Shapes:
        """Return layer ``n``'s tensors by their names inside the layer."""
        raise NotImplementedError

    def layer_tensors(self, n: int) -> Shapes:
        """Return the name and shape of every tensor of layer ``n``."""
        at = self.layer_prefix(n)
        return {at + name: shape for name, shape in self.layer_shapes(n).items()}

    def embed_tensors(self) -> Shapes:
        """Return what turns token ids into rows."""
        return {self.embed_name: (self.vocab, self.width)}

    def head_tensors(self) -> Shapes:
        """Return what turns rows into logits: the final norm and the head (or the embedding)."""
        head = self.embed_name if self.tied else HEAD
        return {f"{self.prefix}norm.weight": (self.width,), head: (self.vocab, self.width)}

    def drafter_tensors(self) -> Shapes:
        """Return the tensors of the checkpoint's own drafter (MTP head), if it can have one.

        A checkpoint may have all of them or none.
        """
        return {}

    def token_tensors(self) -> Shapes:
        """Return what every stage reads beside its layers, to make their inputs of token ids."""
        return {}

    def own_tensors(self, first: int, end: int, lead: bool) -> Shapes:
        """Return what a stage of layers ``first..end`` reads; a tied matrix stands once.

        Raises:
            ValueError: The range is not inside ``0..layers``.
        """
        if not 0 <= first <= end <= self.layers:
            message = f"layers {first}..{end} are not inside 0..{self.layers}"
            raise ValueError(message)
        own: Shapes = self.token_tensors()
        if lead:
            own = self.embed_tensors() | self.head_tensors()
        for n in range(first, end):
            own |= self.layer_tensors(n)
        return own

    def all_tensors(self) -> Shapes:
        """Return every tensor of the whole model, without the drafter's."""
        return self.own_tensors(0, self.layers, lead=True)

    def layer_state(self, n: int, value_bytes: int = 2) -> LayerState:
        """Return what a stream keeps in layer ``n``, for KV values of ``value_bytes`` bytes."""
        raise NotImplementedError

    def cut_refused(self, at: int) -> str | None:
        """Return why layers ``at - 1`` and ``at`` cannot be on two stages, or ``None``."""
        if not 0 < at < self.layers:
            return f"a cut lies before one of the layers 1..{self.layers}"
        return None

    def allowed_cuts(self) -> tuple[int, ...]:
        """Return every layer before which the model can be cut, ascending."""
        return tuple(at for at in range(1, self.layers) if self.cut_refused(at) is None)

    def check_cuts(self, cuts: Iterable[int]) -> None:
        """Refuse a placement that cuts where this model cannot be cut.

        Raises:
            PlacementError: ``cut_forbidden``, with the nearest cuts that are allowed.
        """
        for at in cuts:
            why = self.cut_refused(at)
            if why is None:
                continue
            nearest = sorted(sorted(self.allowed_cuts(), key=lambda one: abs(one - at))[:3])
            other = ", ".join(map(str, nearest)) or "none; run it on one stage"
            raise PlacementError(
                f"{self.model_type}: expected a cut that the model allows, got one before layer "
                f"{at} ({why}); nearest allowed: {other}",
                reason="cut_forbidden",
            )

    def understood(self) -> dict[str, Any]:
        """Return every field as a JSON value: what a fingerprint of the config is made of."""
        return dataclasses.asdict(self)

    def check_tensors(self, tensors: Mapping[str, TensorInfo], where: str = "checkpoint") -> None:
        """Refuse a checkpoint whose table is not exactly this family's, before weights are read.

        Raises:
            CheckpointError: ``tensor_missing``, ``tensor_shape``, ``tensor_unknown`` or
                ``quantization``, naming the tensor.
        """
        check_table(self.all_tensors(), tensors, where, optional=self.drafter_tensors())
