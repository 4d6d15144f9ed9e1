"""One rank's end of the ring, as a context manager that tells the others how it ended.

The bytes, the deadlines and the threads are those of ``stagelink._native``; no loop lives here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from stagelink.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    import numpy as np

    from stagelink import _native
    from stagelink.config import LinkConfig
    from stagelink.request.round import Round


class PostedRows(Protocol):
    """Rows that the link sends in the background, a `_native.Posted`."""

    def wait(self, seconds: float | None = None) -> tuple[int, int]:
        """Return once they are gone and their memory may be written again."""
        ...


class LeadRing(Protocol):
    """The calls that rank 0's loop makes once a round; `alone.AloneRing` has them too."""

    @property
    def rounds_in_flight_max(self) -> int:
        """Rounds that may be on the ring at once."""
        ...

    def send_plan(self, plan: _native.Plan) -> int:
        """Send the plan to every follower; return its round number."""
        ...

    def send_rows(self, number: int, rows: np.ndarray, /) -> None:
        """Send the round's rows to the next rank."""
        ...

    def post_send(self, number: int, rows: np.ndarray, /) -> PostedRows:
        """Send the round's rows in the background."""
        ...

    def receive_rows(self, number: int, rows: np.ndarray, /) -> int:
        """Receive the rows that return; return how many."""
        ...

    def exchange(self, number: int, rows_out: np.ndarray, rows_in: np.ndarray, /) -> int:
        """Send, then receive."""
        ...

    def progress(
        self,
        phase: str,
        *,
        round: int = 0,  # noqa: A002 (the link's own word)
        busy_limit_seconds: float = 0.0,
        done: int = 0,
    ) -> None:
        """Note what the engine does."""
        ...


class Ring:
    """A joined ring; leaving the block ends it, in order or for every rank with the cause."""

    def __init__(self, native: _native.Ring) -> None:
        """Take the round calls of ``native`` as they are: a hop is one call into Rust."""
        self._native = native
        self.send_plan = native.send_plan
        self.receive_plan = native.receive_plan
        self.send_rows = native.send_rows
        self.post_send = native.post_send
        self.post_receive = native.post_receive
        self.receive_rows = native.receive_rows
        self.exchange = native.exchange
        self.progress = native.progress
        self.figures = native.figures
        self.ready = native.ready
        self.tell_figures = native.tell_figures
        # Who came to the listener during boot and was not let in, counted; empty for nobody.
        self.strangers = native.strangers

    @classmethod
    def join(
        cls,
        config: LinkConfig,
        listener: _native.Listener,
        description: _native.Description,
        fields: Sequence[bytes],
    ) -> Self:
        """Shake hands with every neighbour and agree on the placement; see `_native.Ring.join`."""
        from stagelink import _native  # noqa: PLC0415 (a ring of one needs no link)

        return cls(
            _native.Ring.join(
                listener=listener,
                lead=config.lead,
                key_file=config.key_file,
                launch_id=config.launch_id,
                fields=list(fields),
                description=description,
                join_seconds=config.join_seconds,
                wait=config.wait,
                suite=config.suite,
            )
        )

    @property
    def rounds_in_flight_max(self) -> int:
        """Rounds with rows that may be on the ring at once; on rank 0 the least of all stages'."""
        return self._native.rounds_in_flight_max

    @property
    def members(self) -> list[dict[str, Any]]:
        """Per rank what it said of itself: rank, first, end, host, address and, on rank 0, more."""
        return self._native.members

    @property
    def readies(self) -> list[dict[str, int]]:
        """Rank 0, once all are loaded: per follower rank, load_ms, bytes_held, bytes_read."""
        return self._native.readies

    @property
    def told_figures(self) -> dict[int, list[int]]:
        """Rank 0, after `close`: what followers told of their loops, by rank."""
        return self._native.told_figures

    def close(self) -> None:
        """End in order: rank 0 says bye to all, a follower answers."""
        self._native.close()

    def __enter__(self) -> Self:
        """Return the ring itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the ring; a failure of this rank becomes the named end of every rank."""
        if error is None:
            self.close()
        elif isinstance(error, (KeyboardInterrupt, SystemExit)):
            self._native.fail("interrupted", "interrupted")
        elif isinstance(error, BrokenPipeError):
            self._native.fail("interrupted", "whoever read its output went away")
        elif isinstance(error, EngineError):
            self._native.fail("engine", f"engine: {one_line(error)}")
        else:
            self._native.fail("local", one_line(error))


def plan_of(wanted: Round, *, token_ids: bool = False) -> _native.Plan:
    """Make the plan that says what ``wanted`` says, with the token id of every row where asked."""
    from stagelink import _native  # noqa: PLC0415 (as above)

    entries = wanted.entries
    return _native.Plan(
        ids=[entry.id for entry in entries],
        ops=[entry.op for entry in entries],
        firsts=[entry.first for entry in entries],
        rows=[entry.rows for entry in entries],
        accepted=[entry.accepted for entry in entries],
        generations=[entry.generation for entry in entries],
        returns=[entry.returns for entry in entries],
        token_ids=list(wanted.token_ids) if token_ids and wanted.token_ids else None,
    )


def one_line(error: BaseException) -> str:
    """Return an error's text as one line; its class where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
