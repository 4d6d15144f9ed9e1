"""A lead written from docs/protocol.md alone runs a real follower, and breaks rules at it.

The follower is stagelink's own and returns its rows unchanged; the lead shares no code with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.second_lead import CLOSE, CONTINUE, OPEN, SecondLead, entry, plan
from tests.support.second_stage import FateError, Stage

from stagelink import _native, errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = bytes(range(32))
FIELDS = [bytes([number]) * 32 for number in range(1, 9)]
WIDTH = 5
ROW = WIDTH * 4
STAGE = Stage(
    rank=0,
    world=2,
    first=0,
    end=3,
    layers=6,
    width=WIDTH,
    chunk_rows=8,
    rows_max=16,
    streams_max=2,
    context=64,
)


def _description() -> _native.Description:
    return _native.Description(
        rank=1,
        world=2,
        first=3,
        end=6,
        layers=6,
        width=WIDTH,
        planes=1,
        row_dtype="float32",
        kv_dtype="float32",
        chunk_rows=8,
        rows_max=16,
        streams_max=2,
        context=64,
        states=2,
        kv_rows=128,
        weight_bytes=0,
        engine_version="0.1.0",
        backend="test",
        device="",
        host="node1",
    )


@dataclasses.dataclass
class Meeting:
    """A second lead, and a real follower on a thread of its own."""

    lead: SecondLead
    key_file: str
    failure: errors.StagelinkError | None = None
    thread: threading.Thread | None = None

    def start(self, **settings: Any) -> None:
        """The follower begins to dial."""
        self.thread = threading.Thread(target=self._run, args=(settings,))
        self.thread.start()

    def _run(self, settings: dict[str, Any]) -> None:
        try:
            self._follow(settings)
        except errors.StagelinkError as error:
            self.failure = error

    def _follow(self, settings: dict[str, Any]) -> None:
        ring = _native.Ring.join(
            listener=_native.Listener("127.0.0.1:0"),
            lead="{}:{}".format(*self.lead.address),
            key_file=self.key_file,
            launch_id=None,
            description=_description(),
            join_seconds=5.0,
            **({"fields": FIELDS} | settings),
        )
        ring.ready(load_ms=1, bytes_held=0, bytes_read=0, seconds=5.0)
        rows = np.zeros(16 * ROW, dtype=np.uint8)
        while (planned := ring.receive_plan()) is not None:
            number, plan_of_round = planned
            if not plan_of_round.rows_total:
                continue
            ring.receive_rows(number, rows)
            taken = rows[: plan_of_round.rows_total * ROW].reshape(-1, ROW)
            back = taken[list(plan_of_round.returned_offsets)].copy()
            ring.send_rows(number, back if back.size else np.zeros(1, dtype=np.uint8))
        ring.close()

    def finish(self) -> errors.StagelinkError | None:
        """Wait for the follower's end; what it failed with."""
        assert self.thread is not None
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.failure

    def refused_with(self) -> tuple[type, str]:
        """Wait for a fate at the lead and for the follower's own error."""
        with pytest.raises(FateError) as caught:
            self.lead.next_fate()
        failure = self.finish()
        assert failure is not None
        assert failure.reason == caught.value.code
        return type(failure), failure.reason


@pytest.fixture
def suite() -> int:
    """The suite of both ends, as the wire numbers it; a sealed test has its own."""
    return 1


@pytest.fixture
def meeting(tmp_path: Path, suite: int) -> Iterator[Meeting]:
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    key_file.chmod(0o600)
    fingerprint = hashlib.sha256(b"stagelink/v1 fingerprint\0" + b"".join(FIELDS)).digest()
    lead = SecondLead(STAGE, key=KEY, fields=FIELDS, fingerprint=fingerprint, suite=suite)
    made = Meeting(lead, str(key_file))
    yield made
    lead.close()
    if made.thread is not None:
        made.thread.join(10)


def _bytes(rows: int) -> bytes:
    return bytes(number * 7 % 256 for number in range(rows * ROW))


def test_rows_come_back_bit_for_bit(meeting: Meeting) -> None:
    meeting.start()
    meeting.lead.boot()
    assert meeting.lead.described["host"] == "node1"
    chunk, step = _bytes(8), _bytes(1)
    assert meeting.lead.go_round(plan(entry(1, OPEN, 0, 8)), chunk) == chunk
    assert meeting.lead.go_round(plan(entry(1, CONTINUE, 8, 1, 8)), step) == step
    meeting.lead.say_bye()
    assert meeting.finish() is None


@pytest.mark.parametrize(
    ("suite", "name"), [(2, "aes-128-gcm"), (3, "chacha20-poly1305")], ids=["aes", "chacha"]
)
def test_a_sealed_ring_of_both_gives_every_row_back(meeting: Meeting, name: str) -> None:
    meeting.start(suite=name)
    lead = meeting.lead
    lead.boot()
    chunk, step = _bytes(8), _bytes(1)
    assert lead.go_round(plan(entry(1, OPEN, 0, 8)), chunk) == chunk
    lead.send_plan(plan())
    assert lead.go_round(plan(entry(1, CONTINUE, 8, 1, 8)), step) == step
    lead.say_bye()
    assert meeting.finish() is None


@pytest.mark.parametrize("suite", [2])
def test_a_sealed_plan_that_does_not_fit_is_refused_by_its_own_name(meeting: Meeting) -> None:
    meeting.start(suite="aes-128-gcm")
    meeting.lead.boot()
    meeting.lead.send_plan(plan(entry(1, OPEN, 1, 1)))
    assert meeting.refused_with() == (errors.PeerProtocolError, "open_first")


@pytest.mark.parametrize(("choice", "expected"), [(1, 8), (2, 1), (3, 0)])
def test_only_the_asked_rows_come_back(meeting: Meeting, choice: int, expected: int) -> None:
    meeting.start()
    meeting.lead.boot()
    payload = plan(entry(1, OPEN, 0, 8), returns=bytes([choice]))
    chunk = _bytes(8)
    assert meeting.lead.go_round(payload, chunk) == chunk[(8 - expected) * ROW :]
    meeting.lead.say_bye()
    assert meeting.finish() is None


def test_a_draft_that_is_cut_back_goes_on_under_the_next_generation(meeting: Meeting) -> None:
    meeting.start()
    lead = meeting.lead
    lead.boot()
    lead.go_round(plan(entry(1, OPEN, 0, 8)), _bytes(8))
    lead.go_round(plan(entry(1, CONTINUE, 8, 4, 8)), _bytes(4))
    lead.go_round(plan(entry(1, CONTINUE, 9, 1, 1)), _bytes(1))
    lead.go_round(plan(entry(1, CONTINUE, 10, 1, 1, generation=1)), _bytes(1))
    lead.send_plan(plan(entry(1, CLOSE, 0, 0, generation=1)))
    lead.go_round(plan(entry(2, OPEN, 0, 1)), _bytes(1))
    lead.say_bye()
    assert meeting.finish() is None


def test_keepalives_between_rounds_take_numbers_and_change_nothing(meeting: Meeting) -> None:
    meeting.start()
    lead = meeting.lead
    lead.boot()
    lead.send_plan(plan())
    lead.go_round(plan(entry(1, OPEN, 0, 2)), _bytes(2))
    lead.send_plan(plan())
    lead.send_plan(plan())
    lead.go_round(plan(entry(1, CONTINUE, 2, 1, 2)), _bytes(1))
    assert lead.round == 5
    lead.say_bye()
    assert meeting.finish() is None


BAD_PLANS = {
    "unknown_stream": entry(2, CONTINUE, 0, 1),
    "stream_reused": entry(1, OPEN, 0, 1),
    "stale_generation": entry(1, CONTINUE, 8, 1, 8, generation=1),
    "wrong_position": entry(1, CONTINUE, 7, 1, 8),
    "accepted_outside": entry(1, CONTINUE, 9, 1, 9),
    "rows_missing": entry(1, CONTINUE, 8, 0, 8),
    "bad_op": entry(1, 6, 8, 1, 8),
    "unsupported_op": entry(2, 5, 8, 1),
    "open_first": entry(2, OPEN, 1, 1),
}


@pytest.mark.parametrize("reason", BAD_PLANS)
def test_a_plan_that_does_not_fit_is_refused_by_name_at_both_ends(
    meeting: Meeting, reason: str
) -> None:
    meeting.start()
    meeting.lead.boot()
    meeting.lead.go_round(plan(entry(1, OPEN, 0, 8)), _bytes(8))
    meeting.lead.send_plan(plan(BAD_PLANS[reason]))
    assert meeting.refused_with() == (errors.PeerProtocolError, reason)


def test_a_round_that_is_skipped_is_refused_by_name(meeting: Meeting) -> None:
    meeting.start()
    meeting.lead.boot()
    meeting.lead.send_plan(plan(), ahead=2)
    assert meeting.refused_with() == (errors.PeerProtocolError, "bad_sequence")


def test_a_kind_that_may_not_come_is_refused_by_name(meeting: Meeting) -> None:
    meeting.start()
    meeting.lead.boot()
    meeting.lead.control.send("progress", bytes([0, 0, 0, 0, 4]) + bytes(35))
    assert meeting.refused_with() == (errors.PeerProtocolError, "unexpected_kind")


@pytest.mark.parametrize(
    ("rows", "count", "number", "reason"),
    [
        (2, 2, 2, "rows_round"),
        (1, 1, 1, "rows_count"),
        (3, 2, 1, "rows_size"),
    ],
)
def test_wrong_rows_are_refused_by_name(
    meeting: Meeting, rows: int, count: int, number: int, reason: str
) -> None:
    meeting.start()
    meeting.lead.boot()
    meeting.lead.send_plan(plan(entry(1, OPEN, 0, 2)))
    meeting.lead.outgoing.send("rows", _bytes(rows), count=count, sequence=number)
    assert meeting.refused_with() == (errors.PeerProtocolError, reason)


def test_a_silent_lead_is_left_by_name(meeting: Meeting) -> None:
    meeting.start()
    meeting.lead.boot(keepalive_ms=20, silent_intervals=2)
    failure = meeting.finish()
    assert failure is not None
    assert (failure.reason, failure.rank) == ("silent", 0)


def test_a_lead_that_closes_without_a_word_is_lost(meeting: Meeting) -> None:
    meeting.start()
    meeting.lead.boot()
    meeting.lead.close()
    failure = meeting.finish()
    assert isinstance(failure, errors.PeerLostError)
    assert (failure.reason, failure.rank) == ("peer_lost", 0)


def test_a_fate_of_the_lead_is_what_the_follower_reports(meeting: Meeting) -> None:
    meeting.start()
    meeting.lead.boot()
    who = bytes(8)
    text = b"no more"
    head = (134).to_bytes(2, "little") + len(text).to_bytes(2, "little")
    meeting.lead.control.send("fate", head + who + bytes(4) + text)
    failure = meeting.finish()
    assert failure is not None
    assert (failure.reason, failure.rank) == ("engine", 0)
    assert "no more" in str(failure)
