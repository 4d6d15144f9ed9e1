"""An engine that also writes down the rows it makes, for a verification of the ring it is in.

It changes no byte of them and decides nothing; what is written is read by `verify.recording`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from stagelink.engine import CANCEL, CLOSE
from stagelink.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np

    from stagelink.engine import EngineDescription, PlanLike, StageEngine


class RecordingEngine:
    """Another engine, with the rows of every round and the digest of every state that ends."""

    def __init__(
        self, engine: StageEngine, rows: Path, states: Path, *, returned: Path | None = None
    ) -> None:
        """Write into new files of a private folder.

        Args:
            engine: What computes.
            rows: For the rows of every round.
            states: For a line a stream that ends.
            returned: For the rows that the head is given, where they are wanted too.
        """
        self._engine = engine
        self._rows = rows.open("xb")
        self._returned = None if returned is None else returned.open("xb")
        self._states = states.open("x", encoding="ascii")

    @property
    def heartbeat(self) -> Callable[[], None] | None:
        """What the engine calls inside a long round, where it does."""
        found: Callable[[], None] | None = getattr(self._engine, "heartbeat", None)
        return found

    @heartbeat.setter
    def heartbeat(self, beat: Callable[[], None] | None) -> None:
        if hasattr(self._engine, "heartbeat"):
            self._engine.heartbeat = beat

    def describe(self) -> EngineDescription:
        """Say what the engine is."""
        return self._engine.describe()

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read the own tensors."""
        self._engine.load(progress)

    def warm(self) -> None:
        """Run once what the shapes need; not recorded."""
        self._engine.warm()

    def run(self, plan: PlanLike, rows_in: np.ndarray, rows_out: np.ndarray) -> None:
        """Run a round and write down its rows."""
        self._note_states(plan)
        self._engine.run(plan, rows_in, rows_out)
        self._rows.write(rows_out.data)

    def run_first(self, plan: PlanLike, token_ids: np.ndarray, rows_out: np.ndarray) -> None:
        """Run the lead's part of a round and write down its rows."""
        self._note_states(plan)
        self._engine.run_first(plan, token_ids, rows_out)
        self._rows.write(rows_out.data)

    def run_head(self, rows_in: np.ndarray, rows: int) -> np.ndarray:
        """Return the logits; whoever asked for them writes them down."""
        if self._returned is not None:
            self._returned.write(rows_in.data)
        return self._engine.run_head(rows_in, rows)

    def keep(self, stream: int, position: int) -> None:
        """Cut a stream back."""
        self._engine.keep(stream, position)

    def save(self, stream: int) -> bytes:
        """Return a stream's state."""
        return self._engine.save(stream)

    def restore(self, stream: int, state: bytes) -> None:
        """Open a stream with a saved state."""
        self._engine.restore(stream, state)

    def close(self) -> None:
        """Free everything; the files are complete."""
        self._engine.close()
        self._rows.close()
        self._states.close()
        if self._returned is not None:
            self._returned.close()

    def _note_states(self, plan: PlanLike) -> None:
        """Digest the states that this plan ends; an engine need not be able to save one."""
        for stream, op in zip(plan.ids, plan.ops, strict=True):
            if op in (CLOSE, CANCEL):
                try:
                    digest = hashlib.sha256(self._engine.save(stream)).hexdigest()
                except EngineError:
                    digest = "-"
                self._states.write(f"{stream} {digest}\n")
