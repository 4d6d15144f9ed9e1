"""Which files may hold the key, and the one line that each of the others gets.

The rules are those of docs/trust.md.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagelink import _native
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = bytes(range(32))


def write(path: Path, content: bytes = KEY, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "content",
    [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n", KEY.hex().encode() + b"\r\n"],
    ids=["raw", "digits", "upper case and a line end", "line end of two bytes"],
)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_key_of_32_bytes_raw_or_in_digits_is_taken(
    tmp_path: Path, content: bytes, mode: int
) -> None:
    _native.check_key_file(str(write(tmp_path / "key", content, mode)))


def symlink(path: Path) -> None:
    path.symlink_to(write(path.with_name("real")))


def hang_up(path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.close()


REFUSED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no file": ("key_missing", Path.exists),
    "a symbolic link": ("key_symlink", symlink),
    "a folder": ("key_kind", Path.mkdir),
    "a pipe": ("key_kind", os.mkfifo),
    "group may read": ("key_mode", lambda path: write(path, mode=0o640)),
    "others may write": ("key_mode", lambda path: write(path, mode=0o602)),
    "empty": ("key_size", lambda path: write(path, b"")),
    "a password": ("key_size", lambda path: write(path, b"correct horse battery staple\n")),
    "31 bytes": ("key_size", lambda path: write(path, KEY[:31])),
    "33 bytes": ("key_size", lambda path: write(path, KEY + b"\n")),
    "63 digits": ("key_size", lambda path: write(path, KEY.hex().encode()[:63])),
    "not digits": ("key_size", lambda path: write(path, b"x" * 64)),
    "a large file": ("key_size", lambda path: write(path, bytes(1 << 20))),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_file_is_refused_in_one_line_with_its_path(tmp_path: Path, case: str) -> None:
    reason, make = REFUSED[case]
    path = tmp_path / "key"
    make(path)
    with pytest.raises(ConfigError) as raised:
        _native.check_key_file(str(path))
    assert raised.value.reason == reason
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "key")
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError) as raised:
        _native.check_key_file(str(path))
    assert raised.value.reason == "key_owner"


def test_a_socket_in_the_keys_place_is_refused(tmp_path: Path) -> None:
    hang_up(tmp_path / "key")
    with pytest.raises(ConfigError):
        _native.check_key_file(str(tmp_path / "key"))
