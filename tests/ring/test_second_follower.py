"""A follower written from docs/protocol.md alone takes part in a real ring, byte for byte.

The lead is stagelink's own; the follower shares no code with it (tests/support/second_follower.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.second_follower import SecondFollower
from tests.support.second_reader.handshake import FIELDS as FIELD_NAMES
from tests.support.second_reader.seal import Direction
from tests.support.second_reader.wire import Refusal
from tests.support.second_stage import FateError, Line, Stage

from stagelink import _native, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEY = bytes(range(32))
FIELDS = [bytes([number]) * 32 for number in range(1, 9)]
WIDTH = 5
SUITES = {"psk": 1, "aes-128-gcm": 2, "chacha20-poly1305": 3}
SEALED = [name for name in SUITES if name != "psk"]
STAGE = Stage(
    rank=1,
    world=2,
    first=3,
    end=6,
    layers=6,
    width=WIDTH,
    chunk_rows=8,
    rows_max=16,
    streams_max=2,
    context=64,
)


def _fingerprint(fields: list[bytes]) -> bytes:
    return hashlib.sha256(b"stagelink/v1 fingerprint\0" + b"".join(fields)).digest()


def _description(**changes: Any) -> _native.Description:
    settings: dict[str, Any] = {
        "rank": 0,
        "world": 2,
        "first": 0,
        "end": 3,
        "layers": 6,
        "width": WIDTH,
        "planes": 1,
        "row_dtype": "float32",
        "kv_dtype": "float32",
        "chunk_rows": 8,
        "rows_max": 16,
        "streams_max": 2,
        "context": 64,
        "states": 2,
        "kv_rows": 128,
        "weight_bytes": 0,
        "engine_version": "0.1.0",
        "backend": "test",
        "device": "",
        "host": "",
    }
    return _native.Description(**(settings | changes))


@dataclasses.dataclass
class Meeting:
    """A lead about to listen, and the follower that will find it."""

    listener: _native.Listener
    key_file: str
    checksum: bool = True
    suite: str = "psk"
    follower: SecondFollower | None = None
    thread: threading.Thread | None = None
    failure: BaseException | None = None

    def start(self, stage: Stage = STAGE, **settings: Any) -> None:
        """The follower begins to dial, on a thread of its own."""
        host, _, port = self.listener.address.rpartition(":")
        own: dict[str, Any] = {"key": KEY, "fields": FIELDS, "suite": SUITES[self.suite]}
        settings = own | settings
        fingerprint = _fingerprint(settings["fields"])
        follower = SecondFollower(
            stage,
            (host, int(port)),
            fingerprint=fingerprint,
            checksum=self.checksum,
            **settings,
        )
        self.follower = follower
        self.thread = threading.Thread(target=self._run, args=(follower,))
        self.thread.start()

    def _run(self, follower: SecondFollower) -> None:
        try:
            follower.run()
        except (OSError, Refusal, FateError) as error:
            self.failure = error

    def finish(self) -> SecondFollower:
        """Wait for the follower's end."""
        assert self.thread is not None
        assert self.follower is not None
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.follower

    def join(self, join_seconds: float = 5.0, **changes: Any) -> _native.Ring:
        """The lead's side of the boot, up to the open ring."""
        ring = _native.Ring.join(
            listener=self.listener,
            lead=None,
            key_file=self.key_file,
            launch_id=None,
            fields=FIELDS,
            description=_description(**changes),
            join_seconds=join_seconds,
            keepalive_seconds=0.2,
            checksum=self.checksum,
            suite=self.suite,
        )
        ring.ready(load_ms=1, bytes_held=0, bytes_read=0, seconds=5.0)
        return ring


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    key_file.chmod(0o600)
    made = Meeting(_native.Listener("127.0.0.1:0"), str(key_file))
    yield made
    if made.thread is not None:
        made.thread.join(10)


def _plan(op: int, first: int, rows: int, *, accepted: int = 0, returns: int = 1) -> _native.Plan:
    return _native.Plan(
        ids=[7],
        ops=[op],
        firsts=[first],
        rows=[rows],
        accepted=[accepted],
        generations=[0],
        returns=[returns],
    )


def _go_round(ring: _native.Ring, plan: _native.Plan, rows: np.ndarray) -> np.ndarray:
    number = ring.send_plan(plan)
    back = np.zeros_like(rows)
    count = ring.exchange(number, rows, back)
    return back[:count]


def _go_rounds(ring: _native.Ring, positions: range) -> None:
    for position in positions:
        row = _rows(1)
        assert np.array_equal(_go_round(ring, _plan(2, position, 1, accepted=1), row), row)


def _rows(count: int) -> np.ndarray:
    # Any bits, NaNs among them: a boundary does no arithmetic.
    generator = np.random.default_rng(count)
    return generator.integers(0, 256, (count, WIDTH * 4), dtype=np.uint8)


def test_rows_come_back_bit_for_bit(meeting: Meeting) -> None:
    meeting.start()
    ring = meeting.join()
    chunk, step = _rows(8), _rows(1)
    assert np.array_equal(_go_round(ring, _plan(1, 0, 8), chunk), chunk)
    assert np.array_equal(_go_round(ring, _plan(2, 8, 1, accepted=8), step), step)
    ring.close()
    assert meeting.finish().rounds == [1, 2]
    assert meeting.failure is None


@pytest.mark.parametrize(("returns", "expected"), [(1, 8), (2, 1), (3, 0)])
def test_only_the_asked_rows_come_back(meeting: Meeting, returns: int, expected: int) -> None:
    meeting.start()
    ring = meeting.join()
    chunk = _rows(8)
    back = _go_round(ring, _plan(1, 0, 8, returns=returns), chunk)
    assert np.array_equal(back, chunk[8 - expected :])
    ring.close()
    meeting.finish()
    assert meeting.failure is None


def test_the_ring_agrees_to_leave_out_checksums(meeting: Meeting) -> None:
    meeting.checksum = False
    meeting.start()
    ring = meeting.join()
    chunk = _rows(8)
    assert np.array_equal(_go_round(ring, _plan(1, 0, 8), chunk), chunk)
    ring.close()
    meeting.finish()
    assert meeting.failure is None


@pytest.mark.parametrize("suite", SEALED)
def test_a_sealed_ring_of_both_gives_every_row_back(meeting: Meeting, suite: str) -> None:
    meeting.suite = suite
    meeting.start()
    ring = meeting.join()
    chunk = _rows(8)
    assert np.array_equal(_go_round(ring, _plan(1, 0, 8), chunk), chunk)
    _go_round(ring, _plan(2, 8, 1, accepted=8), _rows(1))
    _go_rounds(ring, range(9, 20))
    ring.close()
    assert len(meeting.finish().rounds) == 13
    assert meeting.failure is None


def test_rows_of_two_records_come_back_bit_for_bit(meeting: Meeting) -> None:
    # 262,144 bytes are a record; 66 rows of 4,000 bytes are one and a little.
    meeting.suite = "aes-128-gcm"
    wide: dict[str, Any] = {"width": 1000, "chunk_rows": 66, "rows_max": 66, "context": 66}
    meeting.start(dataclasses.replace(STAGE, **wide))
    ring = meeting.join(**wide, kv_rows=132)
    rows = np.random.default_rng(1).integers(0, 256, (66, 4000), dtype=np.uint8)
    assert np.array_equal(_go_round(ring, _plan(1, 0, 66), rows), rows)
    ring.close()
    meeting.finish()
    assert meeting.failure is None


@pytest.mark.parametrize(("own", "its"), [("psk", 2), ("aes-128-gcm", 1), ("aes-128-gcm", 3)])
def test_a_differing_suite_is_named_at_both_ends(meeting: Meeting, own: str, its: int) -> None:
    meeting.suite = own
    meeting.start(suite=its)
    with pytest.raises(errors.RefusedError) as caught:
        meeting.join()
    assert (caught.value.reason, caught.value.rank) == ("suite", 1)
    meeting.finish()
    assert isinstance(meeting.failure, Refusal)
    assert meeting.failure.code == "suite"


def _in_the_clear(line: Line) -> None:
    line.leave_in_the_clear()


def _with_another_key(line: Line) -> None:
    line.leave_with(Direction(2, bytes(32)))


def _from_the_first_record_again(line: Line) -> None:
    line.leave_again()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_in_the_clear, "not_sealed"),
        (_with_another_key, "seal"),
        (_from_the_first_record_again, "seal"),
    ],
)
@pytest.mark.parametrize("link", ["control", "ring"])
def test_frames_that_are_not_sealed_as_agreed_are_refused_by_name(
    meeting: Meeting, link: str, change: Callable[[Line], None], reason: str
) -> None:
    meeting.suite = "aes-128-gcm"
    # It tells progress in every wait, so that both links are used all the time.
    meeting.start(keepalive_seconds=0.0)
    ring = meeting.join()
    _go_round(ring, _plan(1, 0, 1), _rows(1))
    assert meeting.follower is not None
    change(meeting.follower.control if link == "control" else meeting.follower.outgoing)
    with pytest.raises(errors.PeerProtocolError) as caught:
        _go_rounds(ring, range(1, 60))
    assert (caught.value.reason, caught.value.rank) == (reason, 1)
    meeting.finish()
    assert isinstance(meeting.failure, FateError | OSError | Refusal)


def test_many_rounds_use_every_credit_again(meeting: Meeting) -> None:
    meeting.start()
    ring = meeting.join()
    _go_round(ring, _plan(1, 0, 1), _rows(1))
    _go_rounds(ring, range(1, 40))
    ring.close()
    assert len(meeting.finish().rounds) == 40
    assert meeting.failure is None


def test_a_round_that_closes_a_stream_has_no_rows(meeting: Meeting) -> None:
    meeting.start()
    ring = meeting.join()
    _go_round(ring, _plan(1, 0, 2), _rows(2))
    assert ring.send_plan(_plan(3, 0, 0, returns=3)) == 2
    ring.close()
    assert meeting.finish().rounds == [1]
    assert meeting.failure is None


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_a_differing_field_is_named_at_both_ends(meeting: Meeting, name: str) -> None:
    fields = list(FIELDS)
    fields[FIELD_NAMES.index(name)] = b"\xff" * 32
    reason = f"fingerprint_{name}"
    meeting.start(fields=fields)
    with pytest.raises(errors.RefusedError) as caught:
        meeting.join()
    assert caught.value.reason == reason
    assert caught.value.rank == 1
    meeting.finish()
    assert isinstance(meeting.failure, Refusal)
    assert meeting.failure.code == reason


def test_a_layout_with_a_gap_reaches_the_follower_as_a_fate(meeting: Meeting) -> None:
    meeting.start(dataclasses.replace(STAGE, first=4))
    with pytest.raises(errors.RefusedError) as caught:
        meeting.join()
    assert (caught.value.reason, caught.value.rank) == ("range_gap", 1)
    meeting.finish()
    assert isinstance(meeting.failure, FateError)
    assert (meeting.failure.code, meeting.failure.culprit) == ("range_gap", 1)


def _of_the_round_before(number: int, count: int, rows: bytes) -> tuple[int, int, bytes]:
    return number - 1, count, rows


def _one_row_less(number: int, count: int, rows: bytes) -> tuple[int, int, bytes]:
    return number, count - 1, rows[: -WIDTH * 4]


def _one_value_more(number: int, count: int, rows: bytes) -> tuple[int, int, bytes]:
    return number, count, rows + bytes(4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_of_the_round_before, "rows_round"),
        (_one_row_less, "rows_count"),
        (_one_value_more, "rows_size"),
    ],
)
def test_wrong_rows_are_refused_by_name(
    meeting: Meeting,
    change: Callable[[int, int, bytes], tuple[int, int, bytes]],
    reason: str,
) -> None:
    meeting.start(change=change)
    ring = meeting.join()
    with pytest.raises(errors.PeerProtocolError) as caught:
        _go_round(ring, _plan(1, 0, 2), _rows(2))
    assert (caught.value.reason, caught.value.rank) == (reason, 1)
    meeting.finish()
    assert isinstance(meeting.failure, FateError | OSError | Refusal)


def test_a_follower_with_another_key_learns_nothing_but_that(meeting: Meeting) -> None:
    meeting.start(key=bytes(32))
    with pytest.raises(errors.StagelinkError) as caught:
        meeting.join(join_seconds=1.0)
    assert caught.value.reason == "never_joined"
    meeting.finish()
    assert isinstance(meeting.failure, Refusal)
    assert meeting.failure.code == "key"
