"""How a command ends: its exit code, and one line for a person or one object for a program.

It prints no result; commands do. ``STAGELINK_TRACEBACK=1`` shows where an error came from.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from stagelink.errors import (
    CheckpointError,
    ConfigError,
    PlacementError,
    RefusedError,
    StagelinkError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FINE, FAILED, REFUSED, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
_REFUSALS = (ConfigError, CheckpointError, PlacementError, RefusedError)


class StageEndedError(StagelinkError):
    """A stage of a local launch ended.

    Attributes:
        code: The exit code that its own error stands for.
        stderr: The last lines that it wrote, where nobody has seen them yet.
    """

    def __init__(
        self,
        text: str,
        *,
        reason: str,
        rank: int | None,
        code: int,
        stderr: Sequence[str] = (),
    ) -> None:
        """Store what the stage left behind."""
        super().__init__(text, reason=reason, rank=rank)
        self.code = code
        self.stderr = tuple(stderr)


def guarded(command: Callable[[], int], *, as_json: bool) -> int:
    """Run a command; turn whatever it raises into one line and an exit code."""
    try:
        return command()
    except SystemExit:
        # The handler of SIGTERM raises it; the ring has heard of it.
        return _tell(StagelinkError("ended by SIGTERM", reason="interrupted"), TERMINATED, as_json)
    except KeyboardInterrupt:
        return _tell(StagelinkError("interrupted", reason="interrupted"), INTERRUPTED, as_json)
    except BrokenPipeError as error:
        drop_stdout()
        return _tell(error, FAILED, as_json=False)
    except Exception as error:  # noqa: BLE001 (a person gets one line, whatever went wrong)
        if os.environ.get("STAGELINK_TRACEBACK") == "1":
            traceback.print_exc()
        return _tell(error, exit_code(error), as_json)


def drop_stdout() -> None:
    """Send to nowhere what Python still holds for a reader that went away; it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(error: BaseException) -> int:
    """Return 2 for wrong use and refusals, 130 for an interrupt, 1 for all else."""
    if isinstance(error, StageEndedError):
        return error.code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return REFUSED if isinstance(error, _REFUSALS) else FAILED


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error as the plain values that `--json` prints."""
    if isinstance(error, StageEndedError) and error.stderr:
        told = {"reason": error.reason, "rank": error.rank, "message": _line(error)}
        return told | {"stderr": list(error.stderr)}
    if isinstance(error, StagelinkError):
        return {"reason": error.reason, "rank": error.rank, "message": _line(error)}
    if isinstance(error, KeyboardInterrupt):
        return {"reason": "interrupted", "rank": None, "message": "interrupted"}
    if isinstance(error, MemoryError):
        return {"reason": "memory", "rank": None, "message": f"out of memory: {_line(error)}"}
    if isinstance(error, BrokenPipeError):
        message = "whoever read the output went away before its end"
        return {"reason": "broken_pipe", "rank": None, "message": message}
    if isinstance(error, OSError):
        return {"reason": "system", "rank": None, "message": _line(error)}
    hint = "set STAGELINK_TRACEBACK=1 to see where"
    message = f"internal error: {type(error).__name__}: {_line(error)} ({hint})"
    return {"reason": "internal", "rank": None, "message": message}


def _tell(error: BaseException, code: int, as_json: bool) -> int:
    told = describe(error)
    if as_json:
        try:
            print(json.dumps({"error": told}), flush=True)
        except OSError:
            # Whoever reads stderr still hears it.
            drop_stdout()
    lines = [f"stagelink: error: {told['message']}"]
    lines += [f"  rank {told['rank']}: {line}" for line in told.get("stderr", ())]
    print("\n".join(lines), file=sys.stderr, flush=True)
    return code


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
