"""Which reference a ring is held against, and what it measures: an engine, or a stored file.

It chooses and orders; the reference's rounds are run by `node.reference`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelink.errors import CheckpointError, ConfigError
from stagelink.node.comparison import replay
from stagelink.node.reference import Reference
from stagelink.node.stage import device_text, open_model, ranges_of, settings_of
from stagelink.verify import measure
from stagelink.verify.figures import closeness
from stagelink.verify.scenario import FORCED, GREEDY
from stagelink.verify.stored import Made, StoredReference, read_stored, write_stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from stagelink.config import ModelConfig
    from stagelink.engine import Checkpoint, EngineSettings, Family
    from stagelink.node.watch import Watch
    from stagelink.placement.ranges import Ranges
    from stagelink.verify.evidence import Evidence
    from stagelink.verify.recording import Recording

WHOLE, STREAMED, AUTO = "whole", "streamed", "auto"
_FALL_BACK = ("numpy", "transformers")


def is_stored(kind: str) -> bool:
    """Whether ``--reference`` names a file."""
    return kind not in (WHOLE, STREAMED, AUTO)


@dataclasses.dataclass(slots=True)
class ReferenceChoice:
    """The model, and what it is computed with for comparison.

    Attributes:
        kind: ``"whole"``, ``"streamed"`` or ``"stored"``.
        checkpoint: Opened; metadata only.
        family: What its config says.
        settings: The shapes of the ring.
        ranges: Layers of every rank.
        engine: What computes the reference; ``None`` for a stored one.
        stored: The file's content.
        layers: Most layers in memory at once, where it is streamed.
        logits: What the reference made, by index of the round.
    """

    kind: str
    checkpoint: Checkpoint
    family: Family
    settings: EngineSettings
    ranges: Ranges
    engine: Reference | None = None
    stored: StoredReference | None = None
    layers: int | None = None
    logits: dict[int, npt.NDArray[np.float32]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        watch: Watch,
        *,
        kind: str,
        engine: str | None = None,
        layers: int | None = None,
    ) -> ReferenceChoice:
        """Open the model, and make or read the reference; no weights are read.

        Args:
            model: The ring's.
            watch: Hears of a conversion, and of the reference's loading.
            kind: ``"auto"``, ``"whole"``, ``"streamed"``, or a file's path.
            engine: The engine to compute with; ``None`` chooses.
            layers: Most layers in memory at once, where it is streamed.

        Raises:
            ConfigError: ``reference`` for a file of another model, ``reference_layers``,
                ``engine_cut``, or what the engine cannot do.
        """
        checkpoint, family = open_model(model, watch.converting)
        shapes = settings_of(model, family.context)
        ranges = ranges_of(model, family)
        if layers is not None and (layers < 1 or kind == WHOLE):
            raise ConfigError(
                f"--reference-layers is {layers}: expected at least 1, and a streamed reference",
                reason="reference_layers",
            )
        if is_stored(kind):
            stored = read_stored(kind, family.vocab)
            if stored.model != checkpoint.content_digest():
                raise ConfigError(
                    f"{kind} is a reference of another model: expected one of "
                    f"{checkpoint.content_digest().hex()[:12]}, got {stored.model.hex()[:12]}",
                    reason="reference",
                )
            return cls("stored", checkpoint, family, shapes, ranges, stored=stored)
        made = _engine(engine, model, checkpoint, shapes, watch)
        made.check_ranges(ranges)
        if kind == AUTO:
            fits = made.whole_bytes() * 2 <= _free_bytes()
            kind = WHOLE if fits and layers is None else STREAMED
        return cls(kind, checkpoint, family, shapes, ranges, engine=made, layers=layers)

    @property
    def dtypes(self) -> list[str]:
        """Row dtype of what computes the reference, or computed the stored one."""
        return [self.made.dtype]

    @property
    def backends(self) -> list[str]:
        """Backend of what computes the reference, or computed the stored one."""
        return [self.made.engine]

    @property
    def made(self) -> Made:
        """What computes the reference, or computed the stored one."""
        if self.engine is not None:
            told = self.engine.described
            return Made(told.backend, device_text(told), told.row_dtype)
        if self.stored is None:
            raise AssertionError("a reference is an engine or a file")
        return self.stored.made

    @property
    def is_routed(self) -> bool:
        """Whether the model has experts that a router chooses."""
        return any("experts" in name for name in self.checkpoint.tensors)

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer has a recurrent state, or one that no family here describes."""
        return any(kind in ("linear", "other") for kind in self.family.layer_kinds)

    def is_same(self, stages: Sequence[dict[str, Any]], dtype: str) -> bool:
        """Whether every stage computes with what the reference computes with."""
        if self.engine is None:
            return False
        told = self.engine.described
        own = told.backend, device_text(told)
        alike = all((stage["engine"], stage["device"]) == own for stage in stages)
        return alike and told.row_dtype == dtype

    def measure(self, evidence: Evidence, found: Recording, engines: Sequence[str]) -> None:
        """Fill in everything that needs a reference."""
        if self.engine is not None:
            whole = self.kind == WHOLE
            made = replay(found, self.engine, self.ranges, engines, whole=whole, layers=self.layers)
            self.logits = made.logits
            evidence.boundaries = made.boundaries
            evidence.close = measure.forced_closeness(found, made.logits)
            evidence.splits = measure.greedy_splits(found, made.logits)
        elif self.stored is not None:
            pairs = zip(found.script.streams(FORCED), self.stored.prompts, strict=True)
            evidence.close = [
                closeness([found.logits[found.places(stream)]], [kept.logits])
                for stream, kept in pairs
            ]
            # A file may have been made without greedy rounds.
            greedy = zip(found.script.streams(GREEDY), self.stored.greedy, strict=False)
            evidence.splits = [
                measure.stored_split(
                    number, measure.drawn(found, stream), list(kept.tokens), kept.logits
                )
                for number, (stream, kept) in enumerate(greedy)
            ]

    def save(self, path: str, found: Recording) -> None:
        """Keep what the reference made."""
        if self.engine is None:
            raise ConfigError(
                "--save-reference needs a reference that is computed, not a file",
                reason="reference",
            )
        try:
            digest = self.checkpoint.content_digest()
            write_stored(Path(path), digest, found, self.logits, self.made)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror or error}", reason="output"
            ) from error

    def as_json(self) -> dict[str, Any]:
        """Return the receipt's words for it."""
        return {
            "kind": self.kind,
            **dataclasses.asdict(self.made),
            "layers_at_once": self.layers,
        }


def _engine(
    name: str | None, model: ModelConfig, checkpoint: Checkpoint, shapes: EngineSettings,
    watch: Watch,
) -> Reference:  # fmt: skip
    """Make the reference that was asked for, or the first of the usual ones that takes the model.

    A ring of one engine is held against that engine, so that every byte can be compared. A mixed
    one is held against one that is readable rather than fast.
    """
    names = [model.engine_of(rank) for rank in range(model.world)]
    candidates = [name] if name else [names[0]] if len(set(names)) == 1 else [*_FALL_BACK, names[0]]
    for candidate in candidates[:-1]:
        try:
            return _made(candidate, model, checkpoint, shapes, watch)
        except (ConfigError, CheckpointError):
            continue
    return _made(candidates[-1], model, checkpoint, shapes, watch)


def _made(
    name: str, model: ModelConfig, checkpoint: Checkpoint, shapes: EngineSettings,
    watch: Watch,
) -> Reference:  # fmt: skip
    """Make an engine's reference; on the device of a rank with the same engine.

    Another engine computes on the device that all ranks share, where it has that one.
    """
    alike = [rank for rank in range(model.world) if model.engine_of(rank) == name]
    shared = {model.device_of(rank) for rank in alike[:1] or range(model.world)}
    device = shared.pop() if len(shared) == 1 else "auto"
    settings = dataclasses.replace(
        shapes,
        device=device,
        # Only what the ring's own engine promises has to hold for a reference of another kind.
        batch_invariant=shapes.batch_invariant and len(alike) == model.world,
        kv_dtype=shapes.kv_dtype if alike else "auto",
    )
    while True:
        try:
            return Reference(checkpoint, name, settings, watch.converting)
        except ConfigError as error:
            other = None if alike else _otherwise(settings, error.reason)
            if other is None:
                raise
            settings = other


def _otherwise(settings: EngineSettings, refused: str) -> EngineSettings | None:
    """Return what an engine that is not the ring's is asked for next, ``None`` for nothing."""
    if refused == "engine_device" and settings.device != "auto":
        return dataclasses.replace(settings, device="auto")
    # float32 holds every value of the ring's rows, so such a reference says as much.
    if refused == "engine_dtype" and settings.dtype != "float32":
        return dataclasses.replace(settings, dtype="float32", kv_dtype="auto")
    return None


def _free_bytes() -> int:
    """Return how much memory could be had now; half of all where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
