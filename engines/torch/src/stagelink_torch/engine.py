"""TorchEngine: the seam's promises kept, on top of streams and the model.

It checks and orders; the plan's rules are the seam's, the mathematics in the families' layers.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np
import torch

from stagelink.engine import CONTINUE, OPEN, ConfigError, EngineDescription
from stagelink_torch.drafter import MtpDrafter
from stagelink_torch.families import family_module
from stagelink_torch.graphs import make_runner
from stagelink_torch.invariance import invariant_setup
from stagelink_torch.layer import Batch, Piece
from stagelink_torch.machine import device_name, dtype_name, libraries, make_setup
from stagelink_torch.model import Model
from stagelink_torch.product import ReadAhead
from stagelink_torch.refusal import CHECKS, refuse
from stagelink_torch.saved_state import encode_state, parse_state, state_envelope
from stagelink_torch.streams import Streams
from stagelink_torch.transfer import make_transfer
from stagelink_torch.weights import StageReader, held_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from stagelink.engine import Batch as RoundBatch
    from stagelink.engine import Checkpoint, EngineSettings, Family, PlanLike, Round, StateEnvelope
    from stagelink_torch.graphs import Runner
    from stagelink_torch.transfer import Transfer

    Bytes = npt.NDArray[np.uint8]
    Put = Callable[[RoundBatch, Batch], torch.Tensor]

# No plan can name it, nor those below: ids on the wire are unsigned.
_WARM_STREAM = -1


class TorchEngine:
    """Layers ``first..end`` of a checkpoint on torch; families.py lists the families."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        family: Family,
        first: int,
        end: int,
        *,
        lead: bool,
        settings: EngineSettings,
    ) -> None:
        """Check the range and the settings; no weights are read before ``load``.

        Raises:
            ConfigError: ``engine_family``, ``engine_range``, ``engine_dtype``, ``engine_device``,
                ``engine_limit``, ``engine_threads`` or ``engine_invariance``.
            CheckpointError: For what the family's layers have no formula for.
        """
        self._module = family_module(family)
        self._setup = make_setup(family, settings)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        CHECKS.range(family, first, end, lead=lead)
        check = getattr(self._module, "check", None)
        if check is not None:
            check(family, self._setup)
        if settings.batch_invariant:
            able = getattr(self._module, "INVARIANT", False)
            self._setup = invariant_setup(family, self._setup, able=able)
        self._checkpoint = checkpoint
        self._family = family
        self._span, self._lead = (first, end), lead
        self._settings = settings
        self._float32: tuple[str, ...] = getattr(self._module, "FLOAT32", ())
        self._loaded: _Loaded | None = None
        self._broken = False

    def describe(self) -> EngineDescription:
        """Say what this stage is and will hold."""
        setup, settings = self._setup, self._settings
        return EngineDescription(
            backend=f"torch-{setup.device.type}",
            device=device_name(setup.device),
            row_dtype=dtype_name(setup.dtype),
            kv_dtype=dtype_name(setup.kv_dtype),
            width=self._family.row_width,
            planes=self._family.planes,
            kv_rows=settings.context * settings.streams_max,
            states=settings.streams_max,
            batch_invariant=setup.invariant,
            weight_bytes=self._weight_bytes(),
            libraries=libraries(setup.device),
        )

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read the own tensors and make the slots and the tables."""
        if self._loaded is not None:
            return
        if self._setup.device.index is not None:
            # Graphs and streams are made on the current device: a stage has one of its own.
            torch.cuda.set_device(self._setup.device)
        total = self._weight_bytes()
        reader = StageReader(self._checkpoint, self._setup, self._float32, total, progress)
        with torch.no_grad():
            model = Model.read(
                self._family, self._module, self._span, reader, self._setup, lead=self._lead
            )
        width = self._family.row_width * self._family.planes
        self._loaded = _Loaded(
            model,
            Streams(self._settings.streams_max),
            make_transfer(self._setup, width),
            make_runner(model, self._setup, graphs=getattr(self._module, "GRAPHS", False)),
        )

    def warm(self) -> None:
        """Run decode steps of the usual shapes and one chunk through the layers; nothing stays."""
        loaded = self._ready()
        streams, settings = loaded.streams, self._settings
        if streams.free == 0:
            return
        warmed = [_WARM_STREAM - at for at in range(streams.free)]
        slots = [streams.open(stream) for stream in warmed]
        chunk = min(settings.chunk_rows, settings.rows_max, settings.context)
        with torch.inference_mode():
            batches = loaded.runner.usual(slots)
            for batch in (*batches, Batch.of([Piece(slots[0], 0, 0, chunk)], self._setup)):
                loaded.runner.run(self._new_rows(batch.rows), batch)
                for piece in batch.pieces:
                    loaded.model.forget(piece.slot, piece.last)
            self._choose_read_ahead(loaded, slots[0])
            loaded.model.clear(slots[0])
            if self._lead:
                loaded.model.head(self._new_rows(1))
        for stream in reversed(warmed):
            streams.close(stream)

    def _choose_read_ahead(self, loaded: _Loaded, slot: int) -> None:
        """Time single rows with and without, where there is a choice."""
        setup = self._setup
        if setup.device.type != "cpu" or setup.dtype != torch.float32 or setup.invariant:
            return

        def step() -> torch.Tensor:
            loaded.model.clear(slot)
            rows = self._new_rows(1).fill_(1.0)
            return loaded.model.run(rows, Batch.of([Piece(slot, 0, 0, 1)], setup))

        ReadAhead.of(setup).choose(step)

    def run(self, plan: PlanLike, rows_in: Bytes, rows_out: Bytes) -> None:
        """Turn a round's rows into rows; see the seam."""
        loaded, checked = self._check(plan)
        source = self._rows(rows_in, checked.rows, "rows_in")
        target = self._rows(rows_out, checked.rows, "rows_out")

        def put(part: RoundBatch, batch: Batch) -> torch.Tensor:
            return loaded.transfer.take(source[part.begin : part.end], batch.rows)

        self._compute(loaded, checked, put, target)

    def run_first(self, plan: PlanLike, token_ids: npt.NDArray[np.int64], rows_out: Bytes) -> None:
        """Embed a round's token ids and run the own layers; lead only."""
        loaded, checked = self._check(plan, lead=True)
        CHECKS.token_ids(token_ids, checked.rows, self._family.vocab)
        target = self._rows(rows_out, checked.rows, "rows_out")
        ids = torch.from_numpy(token_ids.copy()).to(self._setup.device)

        def put(part: RoundBatch, batch: Batch) -> torch.Tensor:
            return loaded.model.embed(ids[part.begin : part.end], batch)

        self._compute(loaded, checked, put, target)

    def run_head(self, rows_in: Bytes, rows: int) -> npt.NDArray[np.float32]:
        """Return the float32 logits ``[rows, vocab]`` of the last layer's rows; lead only."""
        loaded = self._ready()
        self._check_lead()
        most = self._settings.rows_max
        if not 0 <= rows <= most:
            raise refuse("too_many_rows", f"at most {most} rows for the head", rows)
        source = self._rows(rows_in, rows, "rows_in")
        if rows == 0:
            return np.zeros((0, self._family.vocab), dtype=np.float32)
        with torch.inference_mode():
            own = loaded.transfer.take(source, rows)
            logits: npt.NDArray[np.float32] = loaded.model.head(own).cpu().numpy()
        return logits

    def load_drafter(self, *, after_norm: bool = True) -> MtpDrafter:
        """Read the checkpoint's own MTP head, beside what ``load`` read; lead only.

        Args:
            after_norm: Whether the head takes rows after the final norm, as released ones want.

        Raises:
            ConfigError: ``engine_drafter`` where family or checkpoint have none.
        """
        loaded = self._ready()
        self._check_lead()
        read_head = getattr(self._module, "read_head", None)
        names = self._family.drafter_tensors()
        if read_head is None or not names or not names.keys() <= self._checkpoint.tensors.keys():
            raise ConfigError(
                f"torch engine: expected a checkpoint with an MTP head, got one of "
                f"{self._family.model_type} without; start without a drafter",
                reason="engine_drafter",
            )
        reader = StageReader(self._checkpoint, self._setup, self._float32, 0, None)
        with torch.no_grad():
            head = read_head(self._family, reader.at, self._setup)
            head = dataclasses.replace(head, after_norm=after_norm)
            return MtpDrafter(head, loaded.model.ends, self._setup, self._draft_rows)

    def keep(self, stream: int, position: int) -> None:
        """Cut a stream back to its first ``position`` positions."""
        loaded = self._ready()
        CHECKS.position(stream, position, loaded.streams.position(stream))
        self._check_cut(loaded, stream, position)
        self._cut(loaded, stream, position)
        loaded.streams.move(stream, position)

    def save(self, stream: int) -> bytes:
        """Return the stream's state of the own layers (saved_state.py has the format)."""
        loaded = self._ready()
        position = loaded.streams.position(stream)
        slot = loaded.streams.slot(stream)
        return encode_state(self._state_format(), position, slot, loaded.model.slots)

    def restore(self, stream: int, state: bytes) -> None:
        """Open ``stream`` with a state that ``save`` of an equal stage made."""
        loaded = self._ready()
        streams = loaded.streams
        CHECKS.place(stream, streams.positions, streams.free, self._settings)
        position, layers = parse_state(self._state_format(), state, loaded.model.slots)
        slot = streams.open(stream)
        with torch.inference_mode():
            loaded.model.clear(slot)
            for slots, parts in zip(loaded.model.slots, layers, strict=True):
                slots.restore(slot, position, parts)
        streams.move(stream, position)

    def close(self) -> None:
        """Drop weights and slots; calling it again does nothing."""
        self._loaded = None
        self._broken = True

    def _check(self, plan: PlanLike, *, lead: bool = False) -> tuple[_Loaded, Round]:
        """Check a plan against the streams, and every cut back against every layer."""
        loaded = self._ready()
        if lead:
            self._check_lead()
        streams, check_cut = loaded.streams, functools.partial(self._check_cut, loaded)
        checked = CHECKS.plan(plan, streams.positions, streams.free, self._settings, check_cut)
        return loaded, checked

    def _check_cut(self, loaded: _Loaded, stream: int, position: int) -> None:
        """Refuse a cut back that a layer cannot make."""
        held, slot = loaded.streams.position(stream), loaded.streams.slot(stream)
        if position == held:
            return
        for layer, slots in enumerate(loaded.model.slots, start=self._span[0]):
            if not slots.can_cut(slot, held, position):
                reach = f"the last that layer {layer} has, up to {held}"
                raise CHECKS.gone(stream, position, reach)

    def _cut(self, loaded: _Loaded, stream: int, position: int) -> None:
        """Cut every layer's slot back, where it holds more."""
        held, slot = loaded.streams.position(stream), loaded.streams.slot(stream)
        if position < held:
            with torch.inference_mode():
                for slots in loaded.model.slots:
                    slots.cut(slot, held, position)

    def _compute(self, loaded: _Loaded, checked: Round, put: Put, target: torch.Tensor) -> None:
        """Apply a checked round. From here on only a fault of the machine can stop it."""
        streams = loaded.streams
        self._broken = True
        with torch.inference_mode():
            self._apply(loaded, checked)
            for part in checked.batches:
                pieces = [
                    Piece(streams.slot(one.stream), one.first, one.begin, one.end)
                    for one in part.pieces
                ]
                batch = Batch.of(pieces, self._setup)
                rows = loaded.runner.run(put(part, batch), batch)
                loaded.transfer.give(rows[: part.end - part.begin], target[part.begin : part.end])
            loaded.transfer.finish()
        for entry in checked.entries:
            if entry.op in (OPEN, CONTINUE):
                streams.move(entry.stream, entry.last)
        self._broken = False

    def _apply(self, loaded: _Loaded, checked: Round) -> None:
        """Open, cut and close in order."""
        for entry in checked.entries:
            if entry.op == OPEN:
                loaded.model.clear(loaded.streams.open(entry.stream))
            elif entry.op == CONTINUE:
                self._cut(loaded, entry.stream, entry.first)
            else:
                self._cut(loaded, entry.stream, 0)
                loaded.streams.close(entry.stream)

    def _draft_rows(self, rows: Bytes, token_ids: npt.NDArray[np.int64]) -> torch.Tensor:
        """Check what a drafter is handed and return the rows on the device."""
        count, most = len(token_ids), self._settings.rows_max
        if not 1 <= count <= most:
            raise refuse("too_many_rows", f"1 to {most} rows for the drafter", count)
        CHECKS.token_ids(token_ids, count, self._family.vocab)
        return self._ready().transfer.take(self._rows(rows, count, "rows"), count)

    def _new_rows(self, count: int) -> torch.Tensor:
        """Return rows of zeros on the device."""
        shape = (count, self._family.row_width * self._family.planes)
        return torch.zeros(shape, dtype=self._setup.dtype, device=self._setup.device)

    def _weight_bytes(self) -> int:
        """Return the bytes of the own tensors as held."""
        shapes = self._family.own_tensors(*self._span, self._lead)
        return held_bytes(shapes, self._setup.dtype, self._float32)

    def _state_format(self) -> StateEnvelope:
        """Return what saved states must agree with; the checkpoint remembers its digest."""
        facts = (self._checkpoint.content_digest(), self._setup.dtype, self._setup.kv_dtype)
        return state_envelope(self._family, self._span, self._settings.context, facts)

    def _ready(self) -> _Loaded:
        """Return what ``load`` made; refuse an engine that is not loaded, closed or broken."""
        if self._loaded is None or self._broken:
            raise refuse("engine_state", "a loaded engine", "one not loaded, closed or broken off")
        return self._loaded

    def _check_lead(self) -> None:
        """Refuse to embed or to make logits on a follower."""
        if not self._lead:
            raise refuse("engine_role", "the lead's engine", "a follower's")

    def _rows(self, buffer: Bytes, rows: int, name: str) -> torch.Tensor:
        """See a rows buffer as ``[rows, width]`` of the row dtype, without a copy."""
        width = self._family.row_width * self._family.planes
        expected = rows * width * self._setup.dtype.itemsize
        CHECKS.buffer(buffer, expected, name)
        # torch wraps no memory that it may not write to.
        seen = torch.from_numpy(buffer if buffer.flags.writeable else buffer.copy())
        return seen.view(self._setup.dtype).view(rows, width)


@dataclasses.dataclass(frozen=True, slots=True)
class _Loaded:
    """What ``load`` makes."""

    model: Model
    streams: Streams
    transfer: Transfer
    runner: Runner
