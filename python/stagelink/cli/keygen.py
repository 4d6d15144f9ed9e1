"""`stagelink keygen PATH`: 32 random bytes in a file that only its owner can read.

It never overwrites a file and never prints the key.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import TYPE_CHECKING

from stagelink.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

KEY_BYTES = 32


def run(arguments: argparse.Namespace) -> int:
    """Make the key file and print its path."""
    write_key(arguments.path)
    if arguments.json:
        print(json.dumps({"path": str(arguments.path), "bytes": KEY_BYTES}))
    else:
        print(arguments.path)
    return 0


def write_key(path: str | Path) -> None:
    """Write a new key, mode 0600; ``ConfigError`` ``key_exists`` or ``key_write``."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise ConfigError(
            f"{path} exists: a key is never overwritten; choose another path, or remove it",
            reason="key_exists",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot write the key to {path}: {error.strerror}", reason="key_write"
        ) from error
