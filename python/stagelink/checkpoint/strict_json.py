"""Reads bounded JSON objects from files, and writes the canonical form that digests are made of.

It refuses what JSON readers disagree about: doubled keys, NaN and Infinity (but for a config's),
and non-UTF-8.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any, NoReturn

from stagelink.checkpoint.refusal import refuse, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_AGAIN = "fetch the file again"


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """Return the bytes of a regular file of at most ``bytes_max`` bytes.

    Raises:
        CheckpointError: ``file_missing``, ``file_kind`` or ``file_size``.
    """
    try:
        # Not blocking, so that a pipe with nobody at its other end cannot hold us.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        got = error.strerror or str(error)
        raise refuse(
            "file_missing", path, expected="a readable file", got=got, advice="check the path"
        ) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        # Before there is a file object: none can be made of a folder.
        os.close(descriptor)
        raise refuse(
            "file_kind", path, expected="a regular file", got="another kind", advice=_AGAIN
        )
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        got = f"{status.st_size} bytes"
        raise refuse(
            "file_size", path, expected=f"at most {bytes_max} bytes", got=got, advice=_AGAIN
        )
    return data


def parse_object(
    data: bytes,
    where: str | Path,
    *,
    reason: str = "json",
    constant: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Parse one JSON object.

    Args:
        data: The bytes.
        where: What they are, for the error.
        reason: The error's.
        constant: Makes the value of NaN, Infinity or -Infinity, which are refused without it.

    Raises:
        CheckpointError: ``reason`` when it is not JSON, not an object, or says a key twice.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_doubles,
            parse_constant=constant or _no_constant,
        )
    except (ValueError, RecursionError) as error:
        raise refuse(
            reason, where, expected="a JSON object", got=shown(str(error)), advice=_AGAIN
        ) from None
    if not isinstance(value, dict):
        raise refuse(
            reason, where, expected="a JSON object", got=type(value).__name__, advice=_AGAIN
        )
    return value


def read_object(path: Path, bytes_max: int) -> dict[str, Any]:
    """Read and parse a JSON object from a bounded file; errors as the two functions above."""
    return parse_object(read_bounded(path, bytes_max), path)


def read_config(path: Path, bytes_max: int) -> dict[str, Any]:
    """Read a config.json, where older files have infinity as a number of its own.

    It becomes what transformers 5 writes in its place: ``{"__float__": "Infinity"}``.
    """
    return parse_object(
        read_bounded(path, bytes_max), path, constant=lambda text: {"__float__": text}
    )


def canonical(value: object) -> bytes:
    """Return the one byte form of a JSON value: sorted keys, no whitespace, UTF-8."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8", "surrogatepass")


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                message = f"key {shown(key)} stands twice"
                raise ValueError(message)
            seen.add(key)
    return result


def _no_constant(text: str) -> NoReturn:
    message = f"{text} is not a JSON number"
    raise ValueError(message)
