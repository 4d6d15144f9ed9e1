"""NumpyEngine: the seam's promises kept, on top of rounds, cache and model.

It checks and orders; the plan's rules are the seam's, the mathematics in model.py.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.engine import (
    CONTINUE,
    OPEN,
    Batch,
    ConfigError,
    EngineChecks,
    EngineDescription,
    LlamaFamily,
    Piece,
)
from stagelink_numpy.cache import Cache
from stagelink_numpy.invariance import find_row_step
from stagelink_numpy.memory import FLOAT_BYTES
from stagelink_numpy.model import Model
from stagelink_numpy.rope import check_rope
from stagelink_numpy.state import StateFormat, encode_state, parse_state
from stagelink_numpy.weights import held_bytes, read_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from stagelink.engine import Checkpoint, EngineSettings, Family, PlanLike, Round
    from stagelink_numpy.memory import Floats

    Bytes = npt.NDArray[np.uint8]

# Rows that are no numbers give logits that are none, which the sampler refuses; numpy must neither
# warn of them nor, where a caller turned its warnings into errors, stop inside a round.
_QUIET: Any = {"invalid": "ignore", "over": "ignore", "divide": "ignore"}
_CHECKS = EngineChecks("numpy")
_DTYPE = "float32"
# No plan can name it: ids on the wire are unsigned.
_WARM_STREAM = -1


class NumpyEngine:
    """Layers ``first..end`` of a Llama, Qwen2 or Qwen3 checkpoint in float32 on the CPU."""

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
            ConfigError: ``engine_family``, ``engine_dtype``, ``engine_device``,
                ``engine_range``, ``engine_limit`` or ``engine_invariance``.
            CheckpointError: ``rope_scaling`` for one that this engine has no formula for.
        """
        if not isinstance(family, LlamaFamily):
            raise ConfigError(
                f"numpy engine: expected llama, qwen2 or qwen3, got {family.model_type!r}; "
                f"{family.engine_advice}",
                reason="engine_family",
            )
        _check_settings(family, settings)
        _CHECKS.range(family, first, end, lead=lead)
        check_rope(family)
        find_row_step(family, settings)
        self._checkpoint = checkpoint
        self._family = family
        self._first, self._end, self._lead = first, end, lead
        self._settings = settings
        self._loaded: tuple[Model, Cache] | None = None
        self._broken = False

    def describe(self) -> EngineDescription:
        """Say what this stage is and will hold."""
        family, settings = self._family, self._settings
        return EngineDescription(
            backend="numpy",
            device=platform.processor() or platform.machine() or "cpu",
            row_dtype=_DTYPE,
            kv_dtype=_DTYPE,
            width=family.width,
            planes=1,
            kv_rows=settings.context * settings.streams_max,
            states=settings.streams_max,
            batch_invariant=settings.batch_invariant,
            weight_bytes=held_bytes(family, self._first, self._end, lead=self._lead),
            libraries=_libraries(),
        )

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read the own tensors and make the KV, the tables and the scratch."""
        if self._loaded is not None:
            return
        weights = read_weights(
            self._checkpoint,
            self._family,
            self._first,
            self._end,
            lead=self._lead,
            progress=progress,
        )
        cache = Cache(self._family, self._end - self._first, self._settings)
        self._loaded = Model(self._family, weights, self._settings), cache

    def warm(self) -> None:
        """Run one row and one chunk through the layers; nothing of it stays."""
        model, cache = self._ready()
        if cache.free == 0:
            return
        settings = self._settings
        chunk = min(settings.chunk_rows, settings.rows_max, settings.context)
        cache.open(_WARM_STREAM)
        for count in (1, chunk):
            rows = model.rows(count)
            rows[...] = 0.0
            model.run(Batch(0, count, (Piece(_WARM_STREAM, 0, 0, count),)), cache, rows)
        cache.close(_WARM_STREAM)
        if self._lead:
            model.head(model.rows(1))

    def run(self, plan: PlanLike, rows_in: Bytes, rows_out: Bytes) -> None:
        """Turn a round's rows into rows; see the seam."""
        model, cache = self._ready()
        checked = _CHECKS.plan(plan, cache.positions(), cache.free, self._settings)
        source = self._rows(rows_in, checked.rows, "rows_in")
        target = self._rows(rows_out, checked.rows, "rows_out")

        def put(batch: Batch, rows: Floats) -> None:
            rows[...] = source[batch.begin : batch.end]

        self._compute((model, cache), checked, put, target)

    def run_first(self, plan: PlanLike, token_ids: npt.NDArray[np.int64], rows_out: Bytes) -> None:
        """Embed a round's token ids and run the own layers; lead only."""
        model, cache = self._ready()
        self._check_lead()
        checked = _CHECKS.plan(plan, cache.positions(), cache.free, self._settings)
        _CHECKS.token_ids(token_ids, checked.rows, self._family.vocab)
        target = self._rows(rows_out, checked.rows, "rows_out")

        def put(batch: Batch, rows: Floats) -> None:
            model.embed(token_ids[batch.begin : batch.end], rows)

        self._compute((model, cache), checked, put, target)

    def run_head(self, rows_in: Bytes, rows: int) -> Floats:
        """Return the float32 logits ``[rows, vocab]`` of the last layer's rows; lead only."""
        model, _ = self._ready()
        self._check_lead()
        if not 0 <= rows <= self._settings.rows_max:
            most = self._settings.rows_max
            raise _CHECKS.refuse("too_many_rows", f"at most {most} rows for the head", rows)
        source = self._rows(rows_in, rows, "rows_in")
        own = model.rows(rows)
        own[...] = source
        with np.errstate(**_QUIET):
            return model.head(own)

    def keep(self, stream: int, position: int) -> None:
        """Cut a stream back to its first ``position`` positions."""
        _, cache = self._ready()
        _CHECKS.position(stream, position, cache.position(stream))
        cache.cut(stream, position)

    def save(self, stream: int) -> bytes:
        """Return the stream's KV of the own layers (state.py has the format)."""
        _, cache = self._ready()
        position = cache.position(stream)
        slot = cache.slot(stream)
        held = cache.keys[:, slot, :, :position], cache.values[:, slot, :, :position]
        return encode_state(self._state_format(), *held)

    def restore(self, stream: int, state: bytes) -> None:
        """Open ``stream`` with a state that ``save`` of an equal stage made."""
        _, cache = self._ready()
        _CHECKS.place(stream, cache.positions(), cache.free, self._settings)
        body = parse_state(self._state_format(), state)
        slot = cache.open(stream)
        position = body.shape[3]
        cache.keys[:, slot, :, :position] = body[:, 0]
        cache.values[:, slot, :, :position] = body[:, 1]
        cache.move(stream, position)

    def close(self) -> None:
        """Drop weights and KV; calling it again does nothing."""
        self._loaded = None
        self._broken = True

    def _compute(
        self,
        loaded: tuple[Model, Cache],
        checked: Round,
        put: Callable[[Batch, Floats], None],
        target: Floats,
    ) -> None:
        """Apply a checked round. From here on only a fault of the machine can stop it."""
        model, cache = loaded
        self._broken = True
        for entry in checked.entries:
            if entry.op == OPEN:
                cache.open(entry.stream)
            elif entry.op == CONTINUE:
                cache.cut(entry.stream, entry.first)
            else:
                cache.close(entry.stream)
        for batch in checked.batches:
            # A batch's rows move to the beginning of aligned memory: where they lay in the round
            # and in the caller's buffer cannot change their bits.
            rows = model.rows(batch.end - batch.begin)
            put(batch, rows)
            with np.errstate(**_QUIET):
                model.run(batch, cache, rows)
            target[batch.begin : batch.end] = rows
        for entry in checked.entries:
            if entry.op in (OPEN, CONTINUE):
                cache.move(entry.stream, entry.first + entry.end - entry.begin)
        self._broken = False

    def _state_format(self) -> StateFormat:
        """Return what saved states must agree with; the checkpoint remembers its digest."""
        content = self._checkpoint.content_digest()
        context = self._settings.context
        return StateFormat.of(self._family, self._first, self._end, context, content)

    def _ready(self) -> tuple[Model, Cache]:
        """Return what ``load`` made; refuse an engine that is not loaded, closed or broken."""
        if self._loaded is None or self._broken:
            got = "one not loaded, closed or broken off"
            raise _CHECKS.refuse("engine_state", "a loaded engine", got)
        return self._loaded

    def _check_lead(self) -> None:
        """Refuse to embed or to make logits on a follower."""
        if not self._lead:
            raise _CHECKS.refuse("engine_role", "the lead's engine", "a follower's")

    def _rows(self, buffer: Bytes, rows: int, name: str) -> Floats:
        """See a rows buffer as float32 ``[rows, width]``; refuse another size or type."""
        expected = rows * self._family.width * FLOAT_BYTES
        _CHECKS.buffer(buffer, expected, name)
        return buffer.view("<f4").reshape(rows, self._family.width)


def _check_settings(family: Family, settings: EngineSettings) -> None:
    """Refuse settings that this engine cannot serve."""
    if settings.dtype != _DTYPE:
        raise ConfigError(
            f"numpy engine: expected dtype {_DTYPE}, got {settings.dtype!r}; "
            f"use {_DTYPE}, or another engine",
            reason="engine_dtype",
        )
    if settings.kv_dtype not in ("auto", _DTYPE):
        expected = f"kv_dtype auto or {_DTYPE}"
        raise _CHECKS.refuse_config(
            "engine_dtype", expected, repr(settings.kv_dtype), "change --kv-dtype"
        )
    if settings.device not in ("auto", "cpu"):
        raise ConfigError(
            f"numpy engine: expected device auto or cpu, got {settings.device!r}; it computes on "
            'the CPU only: pip install "stagelink[torch]" and use --engine torch, or --device cpu',
            reason="engine_device",
        )
    _CHECKS.limits(family, settings)


def _libraries() -> str:
    """Name numpy and the BLAS that it was built with: another one may give other bits."""
    built: Any = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {}) if built else {}
    named = f", {blas['name']} {blas.get('version', '')}".rstrip() if blas.get("name") else ""
    return f"numpy {np.__version__}{named}"
