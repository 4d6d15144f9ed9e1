"""Turns whatever an engine raises into an `EngineError`, so that the ring ends with its name.

An engine's own `EngineError` passes as it is; nothing is retried.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from stagelink.errors import EngineError, StagelinkError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Name what the engine was doing where it raises something that is not stagelink's."""
    try:
        yield
    except StagelinkError:
        raise
    except MemoryError as error:
        raise EngineError(f"out of memory while {doing}: {error}", reason="engine") from error
    except Exception as error:
        kind = type(error).__name__
        raise EngineError(f"{kind} while {doing}: {error}", reason="engine") from error
