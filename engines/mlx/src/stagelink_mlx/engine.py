"""MlxEngine: the seam's promises kept, on top of rounds, caches and a range of mlx_lm's layers.

It checks and orders; the plan's rules are the seam's, the layers in layers.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from stagelink.engine import CONTINUE, OPEN, ConfigError, EngineDescription
from stagelink_mlx.backend import choose_backend, use_threads
from stagelink_mlx.cache import Reach
from stagelink_mlx.configs.arguments import check_family
from stagelink_mlx.configs.declared import understandable
from stagelink_mlx.layers import LayerRange
from stagelink_mlx.refusal import CHECKS, refuse
from stagelink_mlx.state import StateFormat, bits_of, from_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from stagelink.engine import Checkpoint, EngineSettings, Family, Piece, PlanLike, Round
    from stagelink_mlx.cache import LayerCache

    Bytes = npt.NDArray[np.uint8]

__all__ = ["MlxEngine"]

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclasses.dataclass(slots=True)
class _Stream:
    """An open stream: its state in each own layer, and the positions that it holds.

    ``reach`` is there where the model has recurrent layers, on this stage or on another.
    """

    caches: list[LayerCache]
    reach: Reach | None
    position: int = 0

    def earliest(self) -> int:
        """Return the first position, besides 0, that a cut can go back to."""
        return 0 if self.reach is None else self.reach.earliest


class MlxEngine:
    """Layers ``first..end`` of a model of mlx_lm, on Metal or on MLX's CPU build.

    One stream is computed at a time, so its neighbours never change its bits.
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
        """Check family, range, settings and tensor table; no weights are read before ``load``.

        Raises:
            ConfigError: ``engine_family``, ``engine_dtype``, ``engine_range``, ``engine_limit``,
                ``engine_device``, ``engine_invariance``, ``cut_forbidden``, ``config_field``,
                ``layer_types`` or ``rope_scaling``.
            CheckpointError: ``tensor_missing``, ``tensor_unknown`` or ``tensor_shape``.
        """
        check_family(family)
        _check_settings(family, settings)
        CHECKS.range(family, first, end, lead=lead)
        _check_cuts(family, first, end)
        self._backend = choose_backend(settings.device)
        self._checkpoint, self._family, self._settings = checkpoint, family, settings
        self._first, self._end, self._lead = first, end, lead
        self._dtype = _DTYPES[settings.dtype]
        self._streams: dict[int, _Stream] = {}
        self._loaded = self._broken = False
        self._layers: LayerRange | None
        on_cpu = self._backend.name == "mlx-cpu"
        readable = understandable(family.model_type, family.config)
        with mx.stream(self._backend.device), readable:
            self._layers = LayerRange(
                checkpoint,
                family,
                first,
                end,
                lead=lead,
                dtype=self._dtype,
                on_cpu=on_cpu,
                context=settings.context,
            )
        if on_cpu and settings.dtype != "float32" and self._layers.has_float_experts:
            wanted = "dtype float32 for experts on a CPU, where MLX multiplies them in no other"
            raise _unfit("engine_dtype", wanted, settings.dtype)
        self._weight_bytes = self._layers.held_bytes

    def describe(self) -> EngineDescription:
        """Say what this stage is and will hold."""
        settings = self._settings
        return EngineDescription(
            backend=self._backend.name,
            device=self._backend.title,
            row_dtype=settings.dtype,
            kv_dtype=settings.dtype,
            width=self._family.row_width,
            planes=1,
            kv_rows=settings.context * settings.streams_max,
            states=settings.streams_max,
            batch_invariant=False,
            weight_bytes=self._weight_bytes,
            libraries=self._backend.libraries,
        )

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read the own tensors, a layer at a time."""
        if self._loaded or self._layers is None:
            return
        use_threads(self._settings.threads)
        own = self._family.own_tensors(self._first, self._end, self._lead)
        sizes = {name: self._checkpoint.tensors[name].nbytes for name in own}
        total, done = sum(sizes.values()), 0

        def count(names: list[str]) -> None:
            nonlocal done
            done += sum(sizes[name] for name in names)
            if progress is not None:
                progress(done, total)

        with mx.stream(self._backend.device):
            self._layers.load(count)
        # What reading left over; MLX would keep it for arrays of the same size.
        mx.clear_cache()
        self._loaded = True

    def warm(self) -> None:
        """Run a row, and on a GPU a chunk: there every shape has kernels to be made."""
        layers = self._ready()
        counts = [1]
        if self._backend.name != "mlx-cpu":
            settings = self._settings
            counts.append(min(settings.chunk_rows, settings.rows_max, settings.context))
        with mx.stream(self._backend.device):
            for count in counts:
                rows, ids = self._blank(count)
                out = layers.run(rows, layers.new_caches(self._settings.context), 0, ids)
                mx.eval(layers.head(out[0]) if self._lead else out)

    def run(self, plan: PlanLike, rows_in: Bytes, rows_out: Bytes) -> None:
        """Turn a round's rows into rows; see the seam."""
        layers = self._ready()
        checked = self._check_round(plan)
        source = self._rows(rows_in, checked.rows, "rows_in")
        target = self._rows(rows_out, checked.rows, "rows_out")

        def rows_of(piece: Piece) -> mx.array:
            return from_bits(source[piece.begin : piece.end], self._dtype)[None]

        ids: npt.NDArray[np.int64] | None = None
        if self._family.needs_token_ids:
            ids = np.array(plan.token_ids or (), np.int64)
            CHECKS.token_ids(ids, checked.rows, self._family.vocab)
        self._compute(layers, checked, rows_of, target, ids)

    def run_first(self, plan: PlanLike, token_ids: npt.NDArray[np.int64], rows_out: Bytes) -> None:
        """Embed a round's token ids and run the own layers; lead only."""
        layers = self._ready()
        self._check_lead()
        checked = self._check_round(plan)
        CHECKS.token_ids(token_ids, checked.rows, self._family.vocab)
        target = self._rows(rows_out, checked.rows, "rows_out")

        def rows_of(piece: Piece) -> mx.array:
            ids = mx.array(token_ids[piece.begin : piece.end])
            return layers.embed(ids, piece.first, self._streams[piece.stream].caches)

        self._compute(layers, checked, rows_of, target, token_ids)

    def run_head(self, rows_in: Bytes, rows: int) -> npt.NDArray[np.float32]:
        """Return the float32 logits ``[rows, vocab]`` of the last layer's rows; lead only."""
        layers = self._ready()
        self._check_lead()
        if not 0 <= rows <= self._settings.rows_max:
            raise refuse("too_many_rows", f"at most {self._settings.rows_max} rows", rows)
        source = self._rows(rows_in, rows, "rows_in")
        if rows == 0:
            return np.zeros((0, self._family.vocab), np.float32)
        with mx.stream(self._backend.device):
            logits = layers.head(from_bits(source, self._dtype))
            mx.eval(logits)
            return np.array(logits)

    def keep(self, stream: int, position: int) -> None:
        """Cut a stream back to its first ``position`` positions."""
        layers = self._ready()
        one = self._stream(stream)
        CHECKS.position(stream, position, one.position)
        self._check_cut(stream, position)
        self._broken = True
        with mx.stream(self._backend.device):
            self._cut(layers, one, position)
            mx.eval([array for cache in one.caches for array in cache.arrays()])
        self._broken = False

    def save(self, stream: int) -> bytes:
        """Return the stream's state of the own layers (state.py has the format)."""
        layers = self._ready()
        one = self._stream(stream)
        with mx.stream(self._backend.device):
            return self._state_format(layers).encode(one.caches, one.position)

    def restore(self, stream: int, state: bytes) -> None:
        """Open ``stream`` with a state that ``save`` of an equal stage made."""
        layers = self._ready()
        CHECKS.place(stream, self._streams, self._free(), self._settings)
        with mx.stream(self._backend.device):
            position, parts = self._state_format(layers).parse(state)
            one = self._new_stream(layers)
            if position:
                for cache, part in zip(one.caches, parts, strict=True):
                    cache.restore(part, position)
            mx.eval([array for cache in one.caches for array in cache.arrays()])
        one.position = position
        if one.reach is not None:
            one.reach.restore(position)
        self._streams[stream] = one

    def close(self) -> None:
        """Drop weights and states; calling it again does nothing."""
        self._layers = None
        self._streams.clear()
        mx.clear_cache()

    def _compute(
        self,
        layers: LayerRange,
        checked: Round,
        rows_of: Callable[[Piece], mx.array],
        target: npt.NDArray[np.uint8],
        token_ids: npt.NDArray[np.int64] | None,
    ) -> None:
        """Apply a checked round. From here on only a fault of the machine can stop it."""
        self._broken = True
        with mx.stream(self._backend.device):
            for entry in checked.entries:
                if entry.op == OPEN:
                    self._streams[entry.stream] = self._new_stream(layers)
                elif entry.op == CONTINUE:
                    self._cut(layers, self._streams[entry.stream], entry.first)
                else:
                    del self._streams[entry.stream]
            for piece in checked.pieces():
                stream = self._streams[piece.stream]
                if stream.reach is not None:
                    stream.reach.begin(piece.first)
                ids = None if token_ids is None else mx.array(token_ids[piece.begin : piece.end])
                rows = layers.run(rows_of(piece), stream.caches, piece.first, ids)
                bits = bits_of(rows[0])
                # Evaluated here, state and all: nothing that is still to be computed may outlive
                # the buffers of this call, or wait inside the device for a network.
                mx.eval(bits, *(one for cache in stream.caches for one in cache.arrays()))
                target[piece.begin : piece.end] = np.array(bits, copy=False).view(np.uint8)
                stream.position = piece.first + piece.end - piece.begin
        self._broken = False

    def _new_stream(self, layers: LayerRange) -> _Stream:
        reach = Reach() if layers.has_recurrence else None
        return _Stream(layers.new_caches(self._settings.context), reach)

    def _cut(self, layers: LayerRange, stream: _Stream, position: int) -> None:
        if position != stream.position:
            layers.cut(stream.caches, position)
            stream.position = position
            if stream.reach is not None:
                stream.reach.cut(position)

    def _check_round(self, plan: PlanLike) -> Round:
        held = {stream: one.position for stream, one in self._streams.items()}
        return CHECKS.plan(plan, held, self._free(), self._settings, self._check_cut)

    def _free(self) -> int:
        return self._settings.streams_max - len(self._streams)

    def _check_cut(self, stream: int, position: int) -> None:
        """Refuse a position that recurrent layers cannot go back to."""
        one = self._streams[stream]
        earliest = one.earliest()
        if 0 < position < earliest:
            raise CHECKS.gone(stream, position, f"{earliest} to {one.position}")

    def _state_format(self, layers: LayerRange) -> StateFormat:
        """Return what saved states must agree with: shapes are known without computing anything."""
        probe = layers.new_caches(1)
        rows, ids = self._blank(1)
        if self._lead:
            layers.embed(ids, 0, probe)
        layers.run(rows, probe, 0, ids)
        bounds = (self._first, self._end, self._settings.context)
        return StateFormat(self._checkpoint, self._family, bounds, probe)

    def _blank(self, count: int) -> tuple[mx.array, mx.array]:
        """Return rows that mean nothing, and a token id for each."""
        return mx.zeros((1, count, self._family.row_width), self._dtype), mx.zeros(count, mx.int64)

    def _ready(self) -> LayerRange:
        """Return the layers; refuse an engine that is not loaded, closed or broken."""
        if self._layers is None or not self._loaded or self._broken:
            raise refuse("engine_state", "a loaded engine", "one not loaded, closed or broken off")
        return self._layers

    def _stream(self, stream: int) -> _Stream:
        one = self._streams.get(stream)
        if one is None:
            raise refuse("unknown_stream", "an open stream", f"stream {stream}")
        return one

    def _check_lead(self) -> None:
        """Refuse to embed or to make logits on a follower."""
        if not self._lead:
            raise refuse("engine_role", "the lead's engine", "a follower's")

    def _rows(self, buffer: Bytes, rows: int, name: str) -> Bytes:
        """See a rows buffer as uint8 ``[rows, bytes of a row]``; refuse another size or type."""
        row_bytes = self._family.row_width * self._dtype.size
        CHECKS.buffer(buffer, rows * row_bytes, name)
        return buffer.reshape(rows, row_bytes)


def _check_cuts(family: Family, first: int, end: int) -> None:
    """Refuse a range that begins or ends where the model cannot be cut: ``cut_forbidden``."""
    for at in (first, end):
        why = family.cut_refused(at) if 0 < at < family.layers else None
        if why is not None:
            near = sorted(sorted(family.allowed_cuts(), key=lambda one: abs(one - at))[:3])
            nearest = f"nearest allowed: {', '.join(map(str, near))}" if near else "none is allowed"
            expected = f"a cut that {family.model_type} allows"
            got = f"one before layer {at} ({why}); {nearest}"
            advice = "change --layers" if near else "run it on one stage"
            raise CHECKS.refuse_config("cut_forbidden", expected, got, advice)


def _check_settings(family: Family, settings: EngineSettings) -> None:
    """Refuse settings that this engine cannot serve."""
    if settings.dtype not in _DTYPES:
        names = ", ".join(_DTYPES)
        raise _unfit("engine_dtype", f"dtype {names}", repr(settings.dtype))
    if settings.kv_dtype not in ("auto", settings.dtype):
        wanted = f"kv_dtype auto or {settings.dtype}, that of the rows"
        raise _unfit("engine_dtype", wanted, repr(settings.kv_dtype))
    if settings.batch_invariant:
        # Neighbours change nothing, but another chunk of the same stream can: another product.
        raise _unfit("engine_invariance", "batch_invariant off", "on")
    CHECKS.limits(family, settings)


def _unfit(reason: str, expected: str, got: str) -> ConfigError:
    text = f"mlx engine: expected {expected}, got {got}; change it, or use another engine"
    return ConfigError(text, reason=reason)
