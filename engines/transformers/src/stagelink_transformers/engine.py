"""TransformersEngine: the seam's promises kept, on top of rounds, streams and the range.

It checks and orders; the modules compute in model.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from stagelink.engine import CONTINUE, OPEN, DescribedFamily, EngineDescription, WideFamily
from stagelink_transformers.boundary import Boundary
from stagelink_transformers.device import choose_device, choose_dtype, device_name, libraries
from stagelink_transformers.model import LayerRange
from stagelink_transformers.refusal import CHECKS, refuse, refuse_config
from stagelink_transformers.state import can_be_saved, encode_state, parse_state, state_envelope
from stagelink_transformers.streams import Stream
from stagelink_transformers.trial import refuse_rows, run_experts, try_range
from stagelink_transformers.weights import fill, kept_dtypes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from stagelink.engine import Checkpoint, EngineSettings, Family, PlanLike, Round, StateEnvelope

    Bytes = npt.NDArray[np.uint8]


class TransformersEngine:
    """Layers ``first..end`` of a decoder of transformers, one stream a call."""

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
        """Check the range and the settings and build the modules without memory.

        Raises:
            ConfigError: ``engine_dtype``, ``engine_device``, ``engine_range``, ``engine_limit``,
                ``engine_family`` or ``engine_invariance``.
        """
        self._dtype = choose_dtype(settings)
        self._device = choose_device(settings)
        _check_settings(family, settings)
        _check_range(family, first, end, lead=lead)
        self._checkpoint = checkpoint
        self._family = family
        self._first, self._end, self._lead = first, end, lead
        self._settings = settings
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self._model = LayerRange(family, first, end, lead=lead, dtype=self._dtype)
        if self._dtype != torch.float32 and getattr(self._model.config, "residual_in_fp32", False):
            raise refuse_rows(family, self._dtype)
        self._weight_bytes = self._model.parameter_bytes(kept_dtypes(self._model))
        self._boundary = Boundary(family.width, settings.dtype, self._dtype, self._device)
        self._streams: dict[int, Stream] = {}
        self._saves = can_be_saved(self._model.make_cache(settings.rows_max))
        self._loaded = False
        self._broken = False

    def describe(self) -> EngineDescription:
        """Say what this stage is and will hold."""
        settings = self._settings
        return EngineDescription(
            backend=f"transformers-{self._device.type}",
            device=device_name(self._device),
            row_dtype=settings.dtype,
            kv_dtype=settings.dtype,
            width=self._family.width,
            planes=1,
            kv_rows=settings.context * settings.streams_max,
            states=settings.streams_max,
            batch_invariant=False,
            weight_bytes=self._weight_bytes,
            libraries=libraries(),
            saves=self._saves,
        )

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read the own tensors into the modules."""
        if self._loaded:
            return
        names = _own_names(self._family, self._first, self._end, lead=self._lead)
        fill(self._model, self._checkpoint, names, self._device, progress)
        is_known = not isinstance(self._family, (WideFamily, DescribedFamily))
        attempt = run_experts if is_known else try_range
        attempt(self._model, self._family, (self._first, self._end), self._device)
        self._loaded = True

    @torch.inference_mode()
    def warm(self) -> None:
        """Run one row and one chunk through the layers; nothing of it stays."""
        self._check_ready()
        settings = self._settings
        chunk = min(settings.chunk_rows, settings.rows_max, settings.context)
        for count in (1, chunk):
            self._new_stream().run(self._boundary.zeros(count))
        if self._lead:
            self._model.head(self._boundary.zeros(1))

    @torch.inference_mode()
    def run(self, plan: PlanLike, rows_in: Bytes, rows_out: Bytes) -> None:
        """Turn a round's rows into rows; see the seam."""
        self._check_ready()
        checked = self._check_plan(plan)
        source = self._boundary.see(rows_in, checked.rows, "rows_in")
        target = self._boundary.see(rows_out, checked.rows, "rows_out")
        self._compute(checked, lambda begin, end: self._boundary.take(source[begin:end]), target)

    @torch.inference_mode()
    def run_first(self, plan: PlanLike, token_ids: npt.NDArray[np.int64], rows_out: Bytes) -> None:
        """Embed a round's token ids and run the own layers; lead only."""
        self._check_ready()
        self._check_lead()
        checked = self._check_plan(plan)
        CHECKS.token_ids(token_ids, checked.rows, self._family.vocab)
        target = self._boundary.see(rows_out, checked.rows, "rows_out")

        def take(begin: int, end: int) -> torch.Tensor:
            return torch.from_numpy(token_ids[begin:end].copy()).to(self._device)

        self._compute(checked, take, target)

    @torch.inference_mode()
    def run_head(self, rows_in: Bytes, rows: int) -> npt.NDArray[np.float32]:
        """Return the float32 logits ``[rows, vocab]`` of the last layer's rows; lead only."""
        self._check_ready()
        self._check_lead()
        if not 0 <= rows <= self._settings.rows_max:
            most = self._settings.rows_max
            raise refuse("too_many_rows", f"at most {most} rows for the head", rows)
        source = self._boundary.see(rows_in, rows, "rows_in")
        if rows == 0:
            return np.zeros((0, self._family.vocab), dtype=np.float32)
        logits = self._model.head(self._boundary.take(source)).cpu().contiguous()
        return np.array(logits.numpy(), dtype=np.float32, copy=True)

    @torch.inference_mode()
    def keep(self, stream: int, position: int) -> None:
        """Cut a stream back to its first ``position`` positions.

        Raises:
            EngineError: ``unknown_stream``, ``wrong_position`` or ``history_gone``.
        """
        self._check_ready()
        state = self._open_stream(stream)
        CHECKS.position(stream, position, state.position)
        self._check_cut(stream, position)
        self._broken = True
        state.cut(position)
        self._broken = False

    def save(self, stream: int) -> bytes:
        """Return the stream's state of the own layers (state.py has the format)."""
        self._check_ready()
        state = self._open_stream(stream)
        self._check_saves()
        return encode_state(self._state_format(), state.cache, state.position)

    @torch.inference_mode()
    def restore(self, stream: int, state: bytes) -> None:
        """Open ``stream`` with a state that ``save`` of an equal stage made."""
        self._check_ready()
        self._check_saves()
        CHECKS.place(stream, self._streams, self._free(), self._settings)
        sample = self._new_stream()
        sample.run(self._boundary.zeros(1))
        slack = self._settings.rows_max
        cache = self._model.make_cache(slack)
        position = parse_state(self._state_format(), state, sample.cache, cache)
        self._streams[stream] = Stream.restored(self._model, slack, cache, position)

    def close(self) -> None:
        """Drop weights and states; calling it again does nothing."""
        self._streams.clear()
        self._model.free()
        self._broken = True

    def _compute(
        self,
        checked: Round,
        take: Callable[[int, int], torch.Tensor],
        target: Bytes,
    ) -> None:
        """Apply a checked round. From here on only a fault of the machine can stop it."""
        self._broken = True
        for entry in checked.entries:
            if entry.op == OPEN:
                self._streams[entry.stream] = self._new_stream()
            elif entry.op == CONTINUE:
                self._streams[entry.stream].cut(entry.first)
            else:
                del self._streams[entry.stream]
        for piece in checked.pieces():
            rows = take(piece.begin, piece.end)
            out = self._streams[piece.stream].run(rows)
            self._boundary.put(out, target[piece.begin : piece.end])
        self._broken = False

    def _new_stream(self) -> Stream:
        return Stream(self._model, self._settings.rows_max)

    def _free(self) -> int:
        return self._settings.streams_max - len(self._streams)

    def _check_plan(self, plan: PlanLike) -> Round:
        held = {stream: state.position for stream, state in self._streams.items()}
        return CHECKS.plan(plan, held, self._free(), self._settings, self._check_cut)

    def _check_cut(self, stream: int, position: int) -> None:
        """Refuse to go back further than what is kept: ``history_gone``."""
        state = self._streams[stream]
        if 0 < position < state.oldest:
            raise CHECKS.gone(stream, position, f"{state.oldest} to {state.position}")

    def _open_stream(self, stream: int) -> Stream:
        if stream not in self._streams:
            raise refuse("unknown_stream", "an open stream", f"stream {stream}")
        return self._streams[stream]

    def _state_format(self) -> StateEnvelope:
        return state_envelope(
            self._family,
            (self._first, self._end),
            self._settings.context,
            dtype=self._settings.dtype,
            content=self._checkpoint.content_digest(),
        )

    def _check_ready(self) -> None:
        """Refuse an engine that is not loaded, closed or broken."""
        if not self._loaded or self._broken:
            raise refuse("engine_state", "a loaded engine", "one not loaded, closed or broken off")

    def _check_saves(self) -> None:
        """Refuse to save or restore what has no format: ``unsupported_op``."""
        if not self._saves:
            got = f"another of {self._family.model_type}; run the prompt again"
            raise refuse("unsupported_op", "a cache of kinds that can be saved", got)

    def _check_lead(self) -> None:
        """Refuse to embed or to make logits on a follower."""
        if not self._lead:
            raise refuse("engine_role", "the lead's engine", "a follower's")


def _own_names(family: Family, first: int, end: int, *, lead: bool) -> dict[str, str]:
    """Return each own tensor's name, and its name in a text model of the own layers only."""
    names = {}
    at = {family.layer_prefix(n): n for n in range(first, end)}
    for name in family.own_tensors(first, end, lead):
        local = name
        for prefix, n in at.items():
            if name.startswith(prefix):
                kept = prefix.removesuffix(f"{n}.")
                local = f"{kept}{n - first}.{name.removeprefix(prefix)}"
        if local.startswith(family.prefix):
            local = "model." + local.removeprefix(family.prefix)
        names[name] = local
    return names


def _check_range(family: Family, first: int, end: int, *, lead: bool) -> None:
    """Refuse a range that is not inside the model, or that the model cannot be cut to."""
    CHECKS.range(family, first, end, lead=lead)
    for at in (first, end):
        why = family.cut_refused(at) if 0 < at < family.layers else None
        if why is not None:
            raise refuse_config(
                "cut_forbidden", f"a cut that {family.model_type} allows", why, "change --layers"
            )


def _check_settings(family: Family, settings: EngineSettings) -> None:
    """Refuse settings that this engine cannot serve."""
    if family.needs_token_ids or family.row_factor != 1 or family.planes != 1:
        raise refuse_config(
            "engine_family",
            "a model whose layers read one row of its width",
            f"{family.model_type}, whose layers read more",
            "use another engine",
        )
    if settings.batch_invariant:
        raise refuse_config(
            "engine_invariance",
            "no promise about chunks and neighbours",
            "batch_invariant",
            "use --engine torch, or leave it out",
        )
    CHECKS.limits(family, settings)
