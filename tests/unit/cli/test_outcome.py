"""Exit codes and error lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stagelink import errors
from stagelink.cli.outcome import StageEndedError, guarded


def _raising(error: BaseException) -> int:
    def command() -> int:
        raise error

    return guarded(command, as_json=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("a"), 2),
        (errors.CheckpointError("a"), 2),
        (errors.PlacementError("a"), 2),
        (errors.RefusedError("a"), 2),
        (errors.PeerLostError("a"), 1),
        (errors.DeadlineError("a"), 1),
        (errors.EngineError("a"), 1),
        (errors.PeerProtocolError("a"), 1),
        (errors.LocalProtocolError("a"), 1),
        (StageEndedError("a", reason="key", rank=1, code=2), 2),
        (ZeroDivisionError("a"), 1),
        (OSError(28, "No space left on device"), 1),
        (MemoryError(), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_is_one_line_and_its_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _raising(error) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("stagelink: error: ")
    assert told.err.count("\n") == 1


def test_json_says_reason_rank_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise errors.PeerLostError("rank 2: gone\nfor good", reason="peer_lost", rank=2)

    assert guarded(command, as_json=True) == 1
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "error": {"reason": "peer_lost", "rank": 2, "message": "rank 2: gone for good"}
    }
    assert told.err == "stagelink: error: rank 2: gone for good\n"


def test_an_error_is_told_although_the_json_cannot_be_written() -> None:
    command = "from stagelink.cli.main import main; raise SystemExit(main())"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", command, "inspect", "nothing-here", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nothing-here" in done.stderr


def test_a_traceback_is_shown_where_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAGELINK_TRACEBACK", "1")
    _raising(errors.ConfigError("a"))
    assert "Traceback" in capsys.readouterr().err
