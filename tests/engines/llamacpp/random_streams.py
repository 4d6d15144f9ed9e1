"""Draws what happens to streams, from a seed: rounds, cuts back, cancels, saves, and refused cuts.

It keeps the rules of a plan and an engine's promise on cuts; a test plays it and compares.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, EngineError
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import Step, step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagelink.engine import EngineSettings
    from stagelink_conformance.pipeline import Outcome, Pipeline

_VOCAB = 256
_BACK_MAX = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Keep:
    """A stream is cut back between two rounds."""

    stream: int
    position: int


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A stream is saved and closed, and opened again under another id and in any free slot."""

    stream: int
    becomes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Gone:
    """A cut to a position that a recurrent state no longer has, which must change nothing."""

    stream: int
    position: int


Action = Step | Keep | Move | Gone


@dataclasses.dataclass(slots=True)
class _Held:
    position: int
    # The earliest position but 0 to which it can be cut.
    floor: int = 0


class RandomStreams:
    """What happens to at most ``streams_max`` streams, one action after the other.

    With ``recurrent`` no cut goes back before a stream's last round; of one of at most ``partial``
    rows it may keep a part, else all of it or nothing.

    Attributes:
        opened: Streams that were opened so far.
    """

    def __init__(
        self,
        seed: int,
        settings: EngineSettings,
        *,
        recurrent: bool,
        partial: int = 1 << 16,
        first_id: int = 1,
    ) -> None:
        """Start without streams; ids count up from ``first_id``."""
        self._rng = np.random.default_rng(seed)
        self._settings = settings
        self._recurrent, self._partial = recurrent, partial
        self._held: dict[int, _Held] = {}
        self._next_id = first_id
        self.opened = 0

    def draw(self, count: int) -> list[Action]:
        """Draw so many actions."""
        return [self._action() for _ in range(count)]

    def closing(self) -> list[Action]:
        """Close what is open."""
        entries = [Entry(stream, CLOSE) for stream in sorted(self._held)]
        self._held.clear()
        return [step(*entries, ids=[])] if entries else []

    def _action(self) -> Action:
        choice = self._rng.random()
        if not self._held or choice < 0.7:
            return self._round()
        stream = int(self._rng.choice(sorted(self._held)))
        own = self._held[stream]
        if choice < 0.78 and self._recurrent and own.floor > 1:
            return Gone(stream, int(self._rng.integers(1, own.floor)))
        if choice < 0.9:
            own.position = self._cut(own) if self._rng.random() < 0.9 else 0
            own.floor = min(own.floor, own.position)
            return Keep(stream, own.position)
        moved = Move(stream, self._take_id())
        del self._held[stream]
        # A saved state is of its last position: it cannot be cut before it.
        self._held[moved.becomes] = _Held(own.position, own.position if self._recurrent else 0)
        return moved

    def _round(self) -> Step:
        entries: list[Entry] = []
        room = self._settings.rows_max
        for stream in sorted(self._held):
            entry = self._touch(stream, room)
            entries += [entry] if entry else []
            room -= entry.rows if entry else 0
        free = self._settings.streams_max - max(len(self._held), len(entries))
        if free > 0 and room > 0 and (not entries or self._rng.random() < 0.6):
            stream = self._take_id()
            rows = int(self._rng.integers(1, min(room, self._settings.context // 3) + 1))
            self._held[stream] = _Held(rows)
            self.opened += 1
            entries.append(Entry(stream, OPEN, 0, rows))
        total = sum(entry.rows for entry in entries)
        inner = max(total - 1, 0)
        wanted = min(inner, int(self._rng.integers(0, 3)))
        cuts = self._rng.choice(inner, size=wanted, replace=False) + 1
        ids = self._rng.integers(0, _VOCAB, total).tolist()
        return step(*entries, ids=ids, cuts=sorted(int(cut) for cut in cuts))

    def _touch(self, stream: int, room: int) -> Entry | None:
        own, choice = self._held[stream], self._rng.random()
        if choice < 0.2 or room == 0:
            return None
        if choice < 0.3 or own.position + 8 > self._settings.context:
            del self._held[stream]
            return Entry(stream, CLOSE if choice < 0.25 else CANCEL)
        first = self._cut(own) if self._rng.random() < 0.4 else own.position
        rows = min(int(self._rng.choice([1, 1, 1, 2, 3, 8])), room)
        own.position, own.floor = first + rows, first if self._recurrent else 0
        return Entry(stream, CONTINUE, first, rows)

    def _cut(self, own: _Held) -> int:
        if self._recurrent and own.position - own.floor > self._partial:
            return int(self._rng.choice([own.floor, own.position]))
        lowest = max(own.floor, own.position - _BACK_MAX, 0)
        return int(self._rng.integers(lowest, own.position + 1))

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def play(pipeline: Pipeline, actions: Iterable[Action]) -> list[Outcome]:
    """Do what was drawn on every stage; return what the rounds gave."""
    outcomes = []
    for action in actions:
        if isinstance(action, Step):
            outcomes.append(pipeline.round(action.plan, action.token_ids))
            continue
        for engine in pipeline.engines:
            if isinstance(action, Keep):
                engine.keep(action.stream, action.position)
            elif isinstance(action, Gone):
                with pytest.raises(EngineError) as caught:
                    engine.keep(action.stream, action.position)
                assert caught.value.reason == "history_gone"
        if isinstance(action, Move):
            states = [engine.save(action.stream) for engine in pipeline.engines]
            closing = step(Entry(action.stream, CLOSE), ids=[])
            pipeline.round(closing.plan, closing.token_ids)
            for engine, state in zip(pipeline.engines, states, strict=True):
                engine.restore(action.becomes, state)
    return outcomes
