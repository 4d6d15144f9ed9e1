"""From a model's name to a loaded stage on an open ring, the same way on every rank.

It runs no round; `lead` and `follow` do. Everything that the checkpoint's metadata can refuse is
refused by `prepare`, before a socket is opened or a weight is read.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from typing import TYPE_CHECKING

from stagelink.checkpoint.open import open_checkpoint
from stagelink.config import CONTEXT_DEFAULT
from stagelink.engine import EngineSettings, give_back, let_code_go, read_family, resident_bytes
from stagelink.engine_registry import find_engine, reads_floats
from stagelink.errors import ConfigError
from stagelink.fingerprint import make_fingerprint
from stagelink.node.asked_engines import common_cuts
from stagelink.node.engine_errors import engine_errors
from stagelink.node.report import StageReport
from stagelink.node.version import version
from stagelink.placement.ranges import check_ranges, even_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink._native import Description
    from stagelink.config import ModelConfig
    from stagelink.engine import Checkpoint, EngineDescription, Family, StageEngine
    from stagelink.fingerprint import Fingerprint
    from stagelink.placement.ranges import Ranges
    from stagelink.ring import Ring

# Rows frames that may lie unread at a boundary, each of at most 64 KiB. Two would do for the
# rows; with more a credit frame goes back once in many hops (docs/protocol.md 6.6).
BUFFERS = 16

# Limits of the wire (docs/protocol.md 8).
STREAMS_MAX = 1024
_TEXT_BYTES_MAX = 255
ROWS_MAX = 65_536

# A prompt's chunks are computed by every stage at once and cross every boundary meanwhile: one a
# stage and one a boundary, the way back included, is what keeps all of them busy.
ROUNDS_IN_FLIGHT_MOST = 64


@dataclasses.dataclass(slots=True)
class Stage:
    """A stage that was checked but holds no weights yet, or holds them after `load`.

    Attributes:
        rank: Its rank.
        ranges: Layers of every rank.
        checkpoint: Opened; metadata only.
        family: What the checkpoint's config says.
        settings: The shapes of the ring.
        engine: Made, not loaded.
        described: What the engine says of itself.
        fingerprint: Binds everything that changes bits.
        load_ms: Loading and warming, once done.
        process_bytes: Memory of the process as loading began and once it was warm.
    """

    rank: int
    ranges: Ranges
    checkpoint: Checkpoint
    family: Family
    settings: EngineSettings
    engine: StageEngine
    described: EngineDescription
    fingerprint: Fingerprint
    load_ms: int = 0
    process_bytes: tuple[int | None, int | None] = (None, None)

    @property
    def world(self) -> int:
        """How many stages the ring has."""
        return len(self.ranges)

    @property
    def is_invariant(self) -> bool:
        """Batch invariance was asked for and is promised.

        An engine that promises it unasked may so stand beside those that do not.
        """
        return self.settings.batch_invariant and self.described.batch_invariant

    @property
    def computes(self) -> tuple[str, str, str, bool]:
        """What of this stage changes bits beside its fingerprint; see `placement_id`."""
        told = self.described
        return told.backend, device_text(told), told.kv_dtype, self.is_invariant

    def description(self) -> Description:
        """Return what this stage tells rank 0 at boot."""
        from stagelink._native import Description  # noqa: PLC0415 (a ring of one tells nobody)

        first, end = self.ranges[self.rank]
        told, shapes = self.described, self.settings
        return Description(
            rank=self.rank,
            world=self.world,
            first=first,
            end=end,
            layers=self.family.layers,
            width=told.width,
            planes=told.planes,
            row_dtype=told.row_dtype,
            kv_dtype=told.kv_dtype,
            chunk_rows=shapes.chunk_rows,
            rows_max=shapes.rows_max,
            streams_max=shapes.streams_max,
            context=shapes.context,
            states=told.states,
            kv_rows=told.kv_rows,
            weight_bytes=told.weight_bytes,
            engine_version=version(),
            backend=told.backend,
            device=device_text(told),
            host=platform.node(),
            buffers=BUFFERS,
            rounds_in_flight_max=min(2 * self.world, ROUNDS_IN_FLIGHT_MOST),
            batch_invariant=self.is_invariant,
            keep=told.keeps,
            token_ids=self.family.needs_token_ids,
        )

    def load(
        self, progress: Callable[[int, int], None], ring: Ring | None, busy_seconds: float
    ) -> None:
        """Read the own tensors and warm up, telling the ring all the while where there is one."""
        began = time.perf_counter()
        # What the checks took and no longer need must not lie beside the weights.
        give_back()
        let_code_go()
        before = resident_bytes()

        def note(done: int, total: int) -> None:
            progress(done, total)
            if ring is not None:
                ring.progress("loading", busy_limit_seconds=busy_seconds, done=done)

        if ring is not None:
            # An engine that hangs before its first word about loading must be found too.
            ring.progress("loading", busy_limit_seconds=busy_seconds)
        with engine_errors("loading"):
            self.engine.load(note)
        if ring is not None:
            ring.progress("warming", busy_limit_seconds=busy_seconds)
        with engine_errors("warming up"):
            self.engine.warm()
        self.load_ms = round((time.perf_counter() - began) * 1e3)
        self.process_bytes = before, resident_bytes()

    def report(self) -> StageReport:
        """Return what is known of this stage without its loop's figures."""
        first, end = self.ranges[self.rank]
        told = os.environ.get("OPENBLAS_NUM_THREADS", "")
        threads = self.settings.threads or (int(told) if told.isdecimal() else None)
        return StageReport(
            rank=self.rank,
            host=platform.node(),
            pid=os.getpid(),
            first=first,
            end=end,
            engine=self.described.backend,
            device=device_text(self.described),
            threads=threads,
            tensor_bytes_held=self.described.weight_bytes,
            tensor_bytes_read=self.checkpoint.bytes_read,
            load_ms=self.load_ms,
            process_bytes_before=self.process_bytes[0],
            process_bytes_loaded=self.process_bytes[1],
        )


def prepare(
    config: ModelConfig, rank: int, progress: Callable[[str, int, int], None] | None = None
) -> Stage:
    """Open the checkpoint and check everything that needs no weights and no peer.

    Raises:
        CheckpointError: The checkpoint is damaged or not implemented.
        PlacementError: The layers are not covered exactly once.
        ConfigError: A setting does not fit the model.
    """
    checkpoint, family = open_model(config, progress)
    ranges = ranges_of(config, family)
    settings = dataclasses.replace(
        settings_of(config, family.context), device=config.device_of(rank)
    )
    first, end = ranges[rank]
    engine = find_engine(config.engine_of(rank))(
        checkpoint, family, first, end, lead=rank == 0, settings=settings
    )
    described = engine.describe()
    if settings.batch_invariant and not described.batch_invariant:
        raise ConfigError(
            f"--batch-invariant: engine {config.engine_of(rank)!r} ({described.backend}) does not "
            "promise it here; leave the flag out, or use another engine",
            reason="engine_invariance",
        )
    if rank == 0:
        # Loaded once and for all, while a GGUF's lists of words are there.
        checkpoint.usable_tokenizer()
    fingerprint = _fingerprint(checkpoint, settings, ranges)
    if rank == 0:
        checkpoint.release_words()
    else:
        # Rows come in and go out here; what text is, only rank 0 is asked.
        checkpoint.release_tokenizer()
    # What the checks took and no longer hold must not lie there while the ring comes together.
    give_back()
    return Stage(
        rank=rank,
        ranges=ranges,
        checkpoint=checkpoint,
        family=family,
        settings=settings,
        engine=engine,
        described=described,
        fingerprint=fingerprint,
    )


def check_model(
    config: ModelConfig, progress: Callable[[str, int, int], None] | None = None
) -> Ranges:
    """Refuse what `prepare` would refuse on some rank, engine apart; return every rank's layers.

    What the stages share is made here once: a GGUF's conversion and the file's digest.
    """
    checkpoint, family = open_model(config, progress)
    settings_of(config, family.context)
    checkpoint.content_digest()
    ranges = ranges_of(config, family, _cuts_of(config, checkpoint, family))
    if _reads_floats(config):
        checkpoint.prepare()
    return ranges


def open_model(
    config: ModelConfig, progress: Callable[[str, int, int], None] | None = None
) -> tuple[Checkpoint, Family]:
    """Open the checkpoint and check its tensors against its family; metadata only."""
    checkpoint = open_checkpoint(
        config.model, cache=config.cache, floats=_reads_floats(config), progress=progress
    )
    family = read_family(checkpoint.config, str(checkpoint.path), checkpoint.tensors)
    family.check_tensors(checkpoint.tensors, str(checkpoint.path))
    return checkpoint, family


def _reads_floats(config: ModelConfig) -> bool:
    """Whether an engine of any rank reads a checkpoint's tensors as floats."""
    return any(reads_floats(config.engine_of(rank)) for rank in range(config.world))


def _cuts_of(config: ModelConfig, checkpoint: Checkpoint, family: Family) -> tuple[int, ...]:
    """Return where the family can be cut, and so can every engine that has rules of its own."""
    if config.ranges is not None or config.world == 1:
        return family.allowed_cuts()
    names = {config.engine_of(rank) for rank in range(config.world)}
    # None but those that read no floats have such rules, and torch takes seconds to import.
    return common_cuts(checkpoint, family, [name for name in names if not reads_floats(name)])


def ranges_of(config: ModelConfig, family: Family, cuts: Sequence[int] | None = None) -> Ranges:
    """Return the layers of every rank: those asked for, or as even a cut as there is.

    Args:
        config: With the ranges that were asked for, or how many there are.
        family: The model's.
        cuts: Where it can be cut; as the family says where that is not given.

    Raises:
        ConfigError: ``world``.
        PlacementError: The layers are not covered exactly once, or a cut is forbidden.
    """
    ranges = _covering(config, family, cuts)
    family.check_cuts(first for first, _ in ranges[1:])
    return ranges


def _covering(config: ModelConfig, family: Family, cuts: Sequence[int] | None) -> Ranges:
    if config.ranges is None:
        allowed = family.allowed_cuts() if cuts is None else cuts
        return even_ranges(family.layers, config.world, allowed)
    if len(config.ranges) != config.world:
        raise ConfigError(
            f"--layers has {len(config.ranges)} ranges, but the ring has {config.world} stages: "
            "give one range a rank",
            reason="world",
        )
    return check_ranges(config.ranges, family.layers)


def settings_of(config: ModelConfig, context_max: int) -> EngineSettings:
    """Return the shapes of the ring; a chunk is never longer than the context.

    Raises:
        ConfigError: ``context``, ``chunk_rows`` or ``streams_max`` out of its range.
    """
    context = min(CONTEXT_DEFAULT, context_max) if config.context is None else config.context
    if not 1 <= context <= context_max:
        raise ConfigError(
            f"--context is {context}: expected 1 to {context_max}, the model's own limit",
            reason="context",
        )
    if config.chunk_rows < 1:
        raise ConfigError(
            f"--chunk-rows is {config.chunk_rows}: expected at least 1", reason="chunk_rows"
        )
    if not 1 <= config.streams_max <= STREAMS_MAX:
        raise ConfigError(
            f"--streams-max is {config.streams_max}: expected 1 to {STREAMS_MAX}",
            reason="streams_max",
        )
    chunk_rows = min(config.chunk_rows, context, ROWS_MAX)
    return EngineSettings(
        dtype=config.dtype,
        context=context,
        streams_max=config.streams_max,
        rows_max=max(chunk_rows, config.streams_max),
        chunk_rows=chunk_rows,
        threads=config.threads,
        kv_dtype=config.kv_dtype,
        batch_invariant=config.batch_invariant,
    )


def device_text(described: EngineDescription) -> str:
    """Return the device and the libraries under it as one text for the wire, at most 255 bytes.

    The libraries matter more than the device's whole name: they are what an upgrade changes.
    """
    libraries = f"; {described.libraries}" if described.libraries else ""
    encoded = (described.device.encode(), libraries.encode()[:_TEXT_BYTES_MAX])
    device = encoded[0][: _TEXT_BYTES_MAX - len(encoded[1])]
    text = (device + encoded[1]).decode("utf-8", "ignore")
    return "".join(letter for letter in text if letter.isprintable())


def _fingerprint(checkpoint: Checkpoint, settings: EngineSettings, ranges: Ranges) -> Fingerprint:
    return make_fingerprint(
        checkpoint,
        dtype=settings.dtype,
        placement=ranges,
        versions={"stagelink": version()},
        shapes={
            "context": settings.context,
            "streams_max": settings.streams_max,
            "rows_max": settings.rows_max,
            "chunk_rows": settings.chunk_rows,
            "buffers": BUFFERS,
        },
    )
