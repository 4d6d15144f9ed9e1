"""Builds the one line with which a checkpoint is refused.

It decides nothing; callers say what was expected, what came and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN_CHARS_MAX = 80
# What a clone without git-lfs leaves in a weight file's place: a text that begins "version ".
LFS_POINTER = "a text in its place, as git-lfs leaves until git lfs pull"


def shown(value: object) -> str:
    """Return a hostile value as short printable text on one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 3] + "..."


def refuse(
    reason: str, where: str | Path, *, expected: str, got: str, advice: str
) -> CheckpointError:
    """Return the error; the caller raises it.

    Args:
        reason: Stable code, matched by tests and by programs.
        where: File, or file and field, that is to blame.
        expected: What the rule asks for.
        got: What the file holds.
        advice: What the reader can do about it.
    """
    text = f"{where}: expected {expected}, got {got}; {advice}"
    return CheckpointError(" ".join(text.split()), reason=reason, operation="open checkpoint")


def cut_short(where: str | Path, expected: int, got: int) -> CheckpointError:
    """Return the error for a file of ``got`` bytes whose own words ask for ``expected`` at least.

    The words may end where the file does, and so not tell how many it had.
    """
    return refuse(
        "truncated",
        where,
        expected=f"a file of at least {expected} bytes, by what it says of itself",
        got=f"one of {got} bytes",
        advice="a download or a copy of it broke off: download it again",
    )
