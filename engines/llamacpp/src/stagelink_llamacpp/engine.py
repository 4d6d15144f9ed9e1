"""LlamaCppEngine: the seam's promises kept, on top of stage files, contexts and streams.

It checks and orders; the plan becomes calls in rounds.py, llama.cpp is behind context.py.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import (
    CONTINUE,
    OPEN,
    ConfigError,
    EngineDescription,
    EngineError,
    StateEnvelope,
    give_back,
)
from stagelink_llamacpp.context import KV_BLOCK
from stagelink_llamacpp.library import library
from stagelink_llamacpp.loading import Loaded, load_stage
from stagelink_llamacpp.refusal import CHECKS, refuse
from stagelink_llamacpp.rounds import check_cut, check_round, one_more_row
from stagelink_llamacpp.setup import read_setup
from stagelink_llamacpp.slicing import read_rule, read_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from stagelink.engine import Checkpoint, EngineSettings, Family, PlanLike
    from stagelink_llamacpp.context import Floats
    from stagelink_llamacpp.head import Embedding, Head
    from stagelink_llamacpp.rounds import SlotPiece, SlotRound

    Bytes = npt.NDArray[np.uint8]

_DTYPE = "float32"
_VALUE = np.dtype("<f4")


class LlamaCppEngine:
    """Layers ``first..end`` of a GGUF file, computed by llama.cpp on its blocks as stored.

    Attributes:
        heartbeat: As the seam has it: called twice a second inside a long chunk on the CPU.
    """

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
        """Check the range, the settings and the file's table; no weights are read before ``load``.

        Raises:
            ConfigError: ``engine_import``, ``engine_checkpoint``, ``engine_family``,
                ``engine_range``, ``engine_cut``, or what `setup.read_setup` raises.
            CheckpointError: The file is damaged.
        """
        self._library = library()
        self._settings = settings
        self._setup = read_setup(self._library, family, settings)
        if not 0 <= first < end <= family.layers or (lead and first != 0):
            at = "a range from layer 0" if lead else "a range of layers"
            raise ConfigError(
                f"llamacpp engine: expected {at} inside 0-{family.layers}, got {first}-{end}; "
                "change --layers",
                reason="engine_range",
            )
        self._checkpoint = checkpoint
        self._slice = read_slice(checkpoint, first, end, lead=lead)
        if self._slice.rule.query_scale(first, end) and self._setup.device.handle is not None:
            raise ConfigError(
                "llamacpp engine: expected device cpu for a part of a Gemma whose queries are "
                f"scaled by its width, got {self._setup.device.kind}; use --device cpu",
                reason="engine_device",
            )
        lanes = self._slice.rule.kv_lanes
        if self._setup.kv == "q8_0" and any(one % KV_BLOCK for one in lanes):
            raise ConfigError(
                f"llamacpp engine: expected heads that are a multiple of {KV_BLOCK} wide for KV "
                f"dtype q8_0, got {lanes[0]} and {lanes[1]}; use --kv-dtype auto",
                reason="engine_dtype",
            )
        self._first, self._end, self._lead = first, end, lead
        self._loaded: Loaded | None = None
        self._broken = False
        # The plan that was last prepared, and what its check came to.
        self._prepared: tuple[PlanLike, SlotRound] | None = None
        self.heartbeat: Callable[[], None] | None = None

    @staticmethod
    def allowed_cuts(checkpoint: Checkpoint) -> tuple[int, ...]:
        """Return where this engine can cut a checkpoint in two, from its table alone.

        Raises:
            ConfigError: ``engine_checkpoint``, ``engine_family`` or ``gguf_metadata`` where it
                cannot run it at all.
        """
        return read_rule(checkpoint).allowed_cuts()

    @staticmethod
    def range_refused(checkpoint: Checkpoint, first: int, end: int) -> str | None:
        """Return why no stage of this engine may hold layers ``first..end``; from its table alone.

        Raises:
            ConfigError: As `allowed_cuts`.
        """
        return read_rule(checkpoint).range_refused(first, end)

    def describe(self) -> EngineDescription:
        """Say what this stage is and will hold."""
        settings, setup = self._settings, self._setup
        return EngineDescription(
            backend=f"llamacpp-{setup.device.kind}",
            device=setup.device.name,
            row_dtype=_DTYPE,
            kv_dtype=setup.kv,
            width=self._slice.width,
            planes=1,
            kv_rows=settings.context * settings.streams_max,
            states=settings.streams_max,
            batch_invariant=False,
            weight_bytes=self._slice.own_bytes,
            libraries=", ".join(
                (
                    self._library.versions,
                    "plain attention" if setup.kv == "float32" else "flash attention",
                    f"{setup.kv} KV",
                    f"{setup.threads} threads",
                    " ".join(self._library.features),
                )
            ),
        )

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Slice the own tensors out of the file, where no earlier start did, and load them."""
        if self._loaded is None:
            self._loaded = load_stage(
                self._library,
                self._checkpoint,
                self._slice,
                (self._setup, self._settings),
                progress,
            )

    def warm(self) -> None:
        """Run one row and one chunk, or a call's part of it, through the layers; nothing stays."""
        loaded, settings = self._ready(), self._settings
        free = loaded.streams.free()
        if not free:
            return
        slot = free[0]
        chunk = min(settings.chunk_rows, settings.rows_max, settings.context)
        for count in (1, min(chunk, loaded.context.block_rows)):
            rows = np.zeros((count, self._slice.width), np.float32)
            loaded.context.rows(rows, [(slot, 0, count)], rows)
            loaded.context.forget(slot)
        if loaded.head is not None:
            loaded.head.logits(np.zeros((1, self._slice.width), np.float32))
        # What the first calls asked for and gave back is not needed again.
        give_back()

    def prepare(self, plan: PlanLike) -> None:
        """Check the plan of the next `run` while its rows are on their way; no state changes."""
        self._prepared = plan, self._check(self._ready(), plan)

    def run(self, plan: PlanLike, rows_in: Bytes, rows_out: Bytes) -> None:
        """Turn a round's rows into rows; see the seam."""
        loaded = self._ready()
        checked = self._prepared_for(plan) or self._check(loaded, plan)
        source = self._rows(rows_in, checked.rows, "rows_in")
        target = self._rows(rows_out, checked.rows, "rows_out")
        self._compute(loaded, checked, source, target)

    def run_first(self, plan: PlanLike, token_ids: npt.NDArray[np.int64], rows_out: Bytes) -> None:
        """Embed a round's token ids and run the own layers; lead only."""
        loaded = self._ready()
        embedding, _ = self._ends(loaded)
        checked = self._check(loaded, plan)
        CHECKS.token_ids(token_ids, checked.rows, self._slice.vocab)
        target = self._rows(rows_out, checked.rows, "rows_out")
        embedding.rows(token_ids, target)
        self._compute(loaded, checked, target, target)

    def run_head(self, rows_in: Bytes, rows: int) -> Floats:
        """Return the float32 logits ``[rows, vocab]`` of the last layer's rows; lead only."""
        loaded = self._ready()
        _, head = self._ends(loaded)
        most = self._settings.rows_max
        if not 0 <= rows <= most:
            raise refuse("too_many_rows", f"at most {most} rows for the head", str(rows))
        return head.logits(self._rows(rows_in, rows, "rows_in"))

    def keep(self, stream: int, position: int) -> None:
        """Cut a stream back to its first ``position`` positions."""
        streams = self._ready().streams
        check_cut(streams.one(stream), position, stream)
        self._prepared = None
        self._broken = True
        streams.cut(stream, position)
        self._broken = False

    def save(self, stream: int) -> bytes:
        """Return the stream's state of the own layers behind the envelope that all engines have."""
        loaded = self._ready()
        own = loaded.streams.one(stream)
        body = loaded.context.save(own.slot) if own.position else b""
        return self._state_format().close(own.position, body)

    def restore(self, stream: int, state: bytes) -> None:
        """Open ``stream`` with a state that ``save`` of an equal stage made."""
        loaded = self._ready()
        free = loaded.streams.free()
        CHECKS.place(stream, loaded.streams.held(), len(free), self._settings)
        self._prepared = None
        slot = free[0]
        position, taken = self._state_format().open(state)
        body = bytes(taken)
        if position:
            try:
                loaded.context.restore(slot, body)
                held = loaded.context.held(slot)
            except EngineError as error:
                loaded.context.forget(slot)
                expected = "a state that llama.cpp takes"
                raise refuse("state_damaged", expected, "one that it refused") from error
            if held != position:
                loaded.context.forget(slot)
                raise refuse("state_damaged", f"a state of {position} positions", str(held))
        loaded.streams.place(stream, slot, position)

    def close(self) -> None:
        """Free weights and KV; calling it again does nothing."""
        if self._loaded is not None:
            self._loaded.close()
        self._loaded = None
        self._broken = True

    def _prepared_for(self, plan: PlanLike) -> SlotRound | None:
        """Return what `prepare` made of this very plan, if nothing has changed since."""
        if self._prepared is None or self._prepared[0] is not plan:
            return None
        return self._prepared[1]

    def _check(self, loaded: Loaded, plan: PlanLike) -> SlotRound:
        streams = loaded.streams
        usual = one_more_row(plan, streams.end_of, self._settings)
        if usual is not None:
            return usual
        recurrent = self._slice.rule.recurrent
        held, free = streams.held(), streams.free()
        return check_round(
            plan,
            held,
            free,
            self._settings,
            call_rows=loaded.context.call_rows,
            lean_rows=loaded.context.lean_rows,
            recurrent=recurrent,
        )

    def _compute(self, loaded: Loaded, checked: SlotRound, source: Floats, target: Floats) -> None:
        """Apply a checked round. From here on only a fault of the machine can stop it."""
        streams = loaded.streams
        loaded.context.pulse.beat = self.heartbeat
        self._prepared = None
        self._broken = True
        for entry, slot in checked.entries:
            if entry.op == OPEN:
                streams.open(entry.stream, slot)
            elif entry.op == CONTINUE:
                streams.cut(entry.stream, entry.first)
            else:
                streams.close(entry.stream)
            if entry.op in (OPEN, CONTINUE) and self._slice.rule.recurrent:
                rows = source[entry.begin : entry.end]
                streams.remember(entry.stream, rows, checked.ends_of(entry))
        for call in checked.calls:
            _run_call(loaded, call, source, target)
            for piece in call:
                streams.look(piece.slot, target[piece.begin : piece.end])
        for entry, _ in checked.entries:
            if entry.op in (OPEN, CONTINUE):
                streams.move(entry.stream, entry.last)
        self._broken = False

    def _state_format(self) -> StateEnvelope:
        """Return what saved states must agree with; the checkpoint remembers its digest."""
        content = self._checkpoint.content_digest()
        context, streams = self._settings.context, self._settings.streams_max
        facts = f"{self._library.versions} {self._setup.kv} {context} x {streams}"
        span = self._first, self._end
        return StateEnvelope.of("llamacpp", span, context, content, facts.encode())

    def _ready(self) -> Loaded:
        """Return what ``load`` made; refuse an engine that is not loaded, closed or broken."""
        if self._loaded is None or self._broken:
            raise refuse("engine_state", "a loaded engine", "one not loaded, closed or broken off")
        return self._loaded

    def _ends(self, loaded: Loaded) -> tuple[Embedding, Head]:
        """Return embedding and head; refuse to embed or to make logits on a follower."""
        if loaded.embedding is None or loaded.head is None:
            raise refuse("engine_role", "the lead's engine", "a follower's")
        return loaded.embedding, loaded.head

    def _rows(self, buffer: Bytes, rows: int, name: str) -> Floats:
        """See a rows buffer as float32 ``[rows, width]``; refuse another size or type."""
        width = self._slice.width
        CHECKS.buffer(buffer, rows * width * _VALUE.itemsize, name)
        seen: Floats = np.ndarray((rows, width), _VALUE, buffer)
        if not seen.flags.aligned:
            raise refuse("rows_buffer", f"{name} aligned to {_VALUE.itemsize} bytes", "an odd one")
        return seen


def _run_call(loaded: Loaded, call: tuple[SlotPiece, ...], source: Floats, target: Floats) -> None:
    """Run one call's rows; those of several pieces are gathered in order of their slots."""
    firsts = [(piece.slot, piece.first, piece.end - piece.begin) for piece in call]
    begin, count = call[0].begin, sum(rows for _, _, rows in firsts)
    if len(call) == 1 or all(one.end == other.begin for one, other in itertools.pairwise(call)):
        end = begin + count
        loaded.context.rows(source[begin:end], firsts, target[begin:end])
        return
    order = np.concatenate([np.arange(piece.begin, piece.end) for piece in call])
    rows = source[order]
    loaded.context.rows(rows, firsts, rows)
    target[order] = rows
