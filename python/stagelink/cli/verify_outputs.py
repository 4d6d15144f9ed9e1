"""The files that a verification leaves: looked at before anything runs, written at the end.

What they hold is made elsewhere; nothing is created by looking.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelink.errors import ConfigError

if TYPE_CHECKING:
    import argparse


def check_outputs(arguments: argparse.Namespace, *, is_stored: bool) -> None:
    """Refuse now what could only fail after hours.

    Args:
        arguments: The command's.
        is_stored: Whether the reference is a file.

    Raises:
        ConfigError: ``output`` for a file that cannot be written, ``reference`` for a reference
            that is read from a file and would be kept in another.
    """
    if is_stored and arguments.save_reference:
        raise ConfigError(
            "--save-reference expects a reference that is computed, got the file "
            f"{arguments.reference}; leave --save-reference out, or --reference",
            reason="reference",
        )
    for flag, name in (("--save-reference", arguments.save_reference),
                       ("--receipt", arguments.receipt), ("--html", arguments.html)):  # fmt: skip
        why = None if name is None else _unwritable(Path(name))
        if why is not None:
            raise ConfigError(
                f"{flag} is {name}: expected a file that can be written, got {why}; "
                "name another one",
                reason="output",
            )


def write_outputs(arguments: argparse.Namespace, receipt: dict[str, Any]) -> None:
    """Write the receipt and the page, where they were asked for."""
    _write(arguments.receipt, json.dumps(receipt, indent=1) + "\n")
    if arguments.html:
        from stagelink.verify.page import page

        _write(arguments.html, page(receipt))


def _unwritable(path: Path) -> str | None:
    """Return why a file cannot be written, ``None`` where nothing speaks against it."""
    try:
        if path.is_dir():
            return "a folder"
        if path.exists():
            return None if os.access(path, os.W_OK) else "one without the right to write it"
        if not path.parent.is_dir():
            return "one in a folder that does not exist"
        if not os.access(path.parent, os.W_OK | os.X_OK):
            return "one in a folder without the right to write there"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _write(path: str | None, text: str) -> None:
    if path is None:
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}", reason="output"
        ) from error
