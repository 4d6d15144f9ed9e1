"""Turns whatever an engine raises into an `EngineError`, so that the ring ends with its name.

An engine's own `EngineError` passes as it is; nothing is retried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.errors import EngineError, StagelinkError

if TYPE_CHECKING:
    from types import TracebackType


class engine_errors:  # noqa: N801 - it reads as the statement that it is
    """Name what the engine was doing where it raises something that is not stagelink's.

    A class: a generator takes three times as long, twice a round in every stage.
    """

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        """``doing`` ends the sentence that begins with the error."""
        self._doing = doing

    def __enter__(self) -> None:
        """Nothing is prepared."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise an `EngineError` in the place of another error; an engine's own passes."""
        if error is None or isinstance(error, StagelinkError):
            return
        if isinstance(error, MemoryError):
            text = f"out of memory while {self._doing}: {error}"
            raise EngineError(text, reason="engine") from error
        if isinstance(error, Exception):
            text = f"{type(error).__name__} while {self._doing}: {error}"
            raise EngineError(text, reason="engine") from error
