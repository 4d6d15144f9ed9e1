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
    taken: dict[str, str] = {}
    for flag, name in (("--save-reference", arguments.save_reference),
                       ("--receipt", arguments.receipt), ("--html", arguments.html)):  # fmt: skip
        if name is None:
            continue
        why = _unwritable(Path(name))
        other = taken.setdefault(os.path.realpath(name), flag) if why is None else flag
        if other != flag:
            why = f"that of {other}"
        if why is not None:
            raise ConfigError(
                f"{flag} is {name}: expected a file that can be written, got {why}; "
                "name another one",
                reason="output",
            )


def write_outputs(arguments: argparse.Namespace, receipt: dict[str, Any]) -> None:
    """Write the receipt and the page, where they were asked for.

    Raises:
        ConfigError: ``output``, for the first that cannot be written; the other one is.
    """
    from stagelink.verify.page import page

    texts = {arguments.receipt: json.dumps(receipt, indent=1) + "\n"}
    if arguments.html:
        texts[arguments.html] = page(receipt)
    failed = [_write(path, text) for path, text in texts.items() if path]
    for error in filter(None, failed):
        raise error


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


def _write(path: str, text: str) -> ConfigError | None:
    """Write a file; return why it could not be."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        return ConfigError(f"{path} cannot be written: {error.strerror or error}", reason="output")
    return None
