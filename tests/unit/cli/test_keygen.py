"""Making keys."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from stagelink.cli.keygen import write_key
from stagelink.cli.main import main
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_key_is_32_bytes_that_only_its_owner_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    assert main(["keygen", str(path)]) == 0
    assert len(path.read_bytes()) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert capsys.readouterr().out == f"{path}\n"


def test_two_keys_differ(tmp_path: Path) -> None:
    write_key(tmp_path / "a")
    write_key(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"mine")
    with pytest.raises(ConfigError) as caught:
        write_key(path)
    assert caught.value.reason == "key_exists"
    assert path.read_bytes() == b"mine"


def test_a_key_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        write_key(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_is_missing_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keygen", str(tmp_path / "no" / "key")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("stagelink: error: cannot write the key")
    assert told.count("\n") == 1
